package hand_test

import (
	"os"
	"testing"

	"github.com/nodeagent/nodeagent/internal/hand"
	"github.com/nodeagent/nodeagent/internal/host"
)

func TestMain(m *testing.M) {
	if hand.ChildMain() {
		return
	}
	host.ProbeMain()
	os.Exit(m.Run())
}
