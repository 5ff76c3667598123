package mutate_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

// The shims that these tests kill leave their sockets to themselves: a lab beside them counts those of the machine.
func TestShimsAreNotTheMachines(t *testing.T) {
	mutatetest.Root(t)
	var run, shims unix.Stat_t
	if err := unix.Stat("/run", &run); err != nil {
		t.Fatal(err)
	}
	if err := unix.Stat("/run/containerd", &shims); err != nil || shims.Dev == run.Dev {
		t.Errorf("/run/containerd is the machine's: %v", err)
	}
}
