package kinds_test

import (
	"os"
	"testing"

	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

func TestMain(m *testing.M) {
	status, inside := mutatetest.SharedRoot()
	if inside {
		status = m.Run()
	}
	os.Exit(status)
}
