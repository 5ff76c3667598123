package mutate_test

import (
	"os"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

func TestMain(m *testing.M) {
	status, inside := mutatetest.SharedRoot()
	if inside {
		remove := ownedtest.Temp()
		status = m.Run()
		remove()
	}
	os.Exit(status)
}
