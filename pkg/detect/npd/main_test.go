package npd

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/nodeagent/nodeagent/internal/host"
)

func TestMain(m *testing.M) {
	host.ProbeMain()
	code := m.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		println(err.Error())
		code = 1
	}
	os.Exit(code)
}
