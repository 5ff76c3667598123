package probe_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/probe"
)

// late is initialized after package probe, as most of the agent's libraries are.
var late = announce()

func announce() bool {
	if os.Args[0] == probe.ChildName {
		fmt.Fprintln(os.Stderr, "initialised more than a probe needs")
	}
	return true
}

// A child finishes its work before packages that it does not need are initialized.
func TestChildIsEarly(t *testing.T) {
	if !late {
		t.Error("not initialised")
	}
	child := exec.CommandContext(t.Context(), "/proc/self/exe")
	child.Args = []string{probe.ChildName, `{"requests":[{"op":"statfs","path":"Lw=="}]}`}
	if out, err := child.CombinedOutput(); err != nil || len(out) == 0 || out[0] != '{' {
		t.Errorf("%v: %s", err, out)
	}
}
