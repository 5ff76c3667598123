package npd

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/internal/host/probe"
)

func TestMain(m *testing.M) {
	probe.ProbeMain()
	remove := ownedtest.Temp()
	code := m.Run()
	remove()
	if err := goleak.Find(); code == 0 && err != nil {
		println(err.Error())
		code = 1
	}
	os.Exit(code)
}
