package archtest

import (
	"os/exec"
	"strings"
	"testing"
)

// TestChildrenAreLight: a child of the agent works as soon as the packages that it needs are initialized. The libraries
// for Kubernetes, containerd and the network would double the processor time of each child.
func TestChildrenAreLight(t *testing.T) {
	for _, pkg := range []string{"internal/host/probe", "internal/mutate/child"} {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}",
			module+pkg).Output()
		if err != nil {
			t.Fatal(err)
		}
		for dep := range strings.FieldsSeq(string(out)) {
			if !strings.HasPrefix(dep, module) && dep != "golang.org/x/sys/unix" {
				t.Errorf("%s needs %s", pkg, dep)
			}
		}
		if !strings.Contains(string(out), module+pkg+"\n") {
			t.Errorf("%s: only %q", pkg, out)
		}
	}
}
