package release

import (
	"os"
	"testing"

	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

func TestMain(m *testing.M) {
	if releaserMain() {
		return
	}
	status, inside := mutatetest.SharedRoot()
	if inside {
		status = m.Run()
	}
	os.Exit(status)
}
