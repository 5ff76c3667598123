package detect

import (
	"os"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host"
)

func TestMain(m *testing.M) {
	host.ProbeMain()
	os.Exit(m.Run())
}
