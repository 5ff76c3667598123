package holders_test

import (
	"os"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/internal/host/probe"
)

func TestMain(m *testing.M) {
	probe.ProbeMain()
	ownedtest.Main(m, os.Exit)
}
