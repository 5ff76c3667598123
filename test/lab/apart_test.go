package lab

import (
	"os"
	"os/exec"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Labs that run side by side have their own folders and their own values of the kernel's settings, and leave none.
func TestApart(t *testing.T) {
	needLab(t)
	const setting = "/proc/sys/kernel/panic"
	before, err := os.ReadFile(setting)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "../need/apart", "--lab=apart-test", "sh", "-c",
		"echo $NODEAGENT_LAB; ls -A /var/lib /var/log; touch /var/lib/mine; echo 77 >"+setting+"; cat "+setting)
	cmd.Env = append(os.Environ(), "NODEAGENT_APART=") // this test may run apart itself
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const want = "/var/lib/nodeagent-lab-apart-test\n/var/lib:\n\n/var/log:\n77\n"
	if diff := cmp.Diff(want, string(out)); diff != "" {
		t.Error(diff)
	}
	if after, err := os.ReadFile(setting); err != nil || string(after) != string(before) {
		t.Errorf("%s is %q, %v; before it was %q", setting, after, err, before)
	}
	for _, name := range []string{"/var/lib/mine", "/var/tmp/nodeagent-lab-apart-test"} {
		if exists(name) {
			t.Errorf("%s is left", name)
		}
	}
}
