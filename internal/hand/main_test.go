package hand_test

import (
	"os"
	"testing"

	"github.com/nodeagent/nodeagent/internal/hand"
	"github.com/nodeagent/nodeagent/internal/hand/handtest"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
)

func TestMain(m *testing.M) {
	if hand.ChildMain() {
		return
	}
	host.ProbeMain()
	status, inside := handtest.SharedRoot()
	if inside {
		remove := ownedtest.Temp()
		status = m.Run()
		remove()
	}
	os.Exit(status)
}
