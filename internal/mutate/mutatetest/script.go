package mutatetest

import (
	"os/exec"
	"testing"
)

// Script runs a shell script in its own mount namespace: its mounts and processes are invisible to others.
func Script(t testing.TB, script string, args ...string) {
	t.Helper()
	Root(t)
	cmd := exec.CommandContext(t.Context(), "unshare", append([]string{"--mount", "--propagation", "private", "sh", "-c",
		script, "sh"}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
