package detect

import (
	"os"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
)

func TestMain(m *testing.M) {
	host.ProbeMain()
	remove := ownedtest.Temp()
	code := m.Run()
	remove()
	os.Exit(code)
}
