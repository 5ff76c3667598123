package host_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/nodeagent/nodeagent/internal/host"
)

func TestMain(m *testing.M) {
	host.ProbeMain()
	goleak.VerifyTestMain(m)
}
