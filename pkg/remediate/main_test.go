package remediate

import (
	"os"
	"testing"

	"github.com/nodeagent/nodeagent/internal/hand"
	"github.com/nodeagent/nodeagent/internal/hand/handtest"
	"github.com/nodeagent/nodeagent/internal/host"
)

func TestMain(m *testing.M) {
	if hand.ChildMain() {
		return
	}
	host.ProbeMain()
	status, inside := handtest.SharedRoot()
	if inside {
		status = m.Run()
	}
	os.Exit(status)
}
