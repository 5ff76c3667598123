package probe_test

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
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		remove()
		os.Exit(code)
	}))
}
