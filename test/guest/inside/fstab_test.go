package inside

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestFstabMount: a filesystem that must be mounted at boot is not mounted, and then is. The daemon waits five minutes
// before it believes that; here single runs are requested.
func TestFstabMount(t *testing.T) {
	a := watch(t)
	ram(t)
	dir := t.TempDir()
	run(t, "modprobe", "ext4")
	run(t, "mkfs.ext4", "-q", "-F", "/dev/ram13", "8M")
	before, err := os.ReadFile("/etc/fstab")
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	t.Cleanup(func() { put(t, "/etc/fstab", string(before)) })
	if err := os.WriteFile("/etc/fstab", []byte(string(before)+"\n/dev/ram13 "+dir+" ext4 defaults 0 2\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	found := func() bool {
		// its exit code depends on the findings
		out, _ := exec.Command(*binary, "check", "fstab-mounts", "--config", a.config, "-o", "json").CombinedOutput()
		t.Logf("%s", out)
		return strings.Contains(string(out), `"FstabMountMissing"`) && strings.Contains(string(out), dir)
	}
	if !found() {
		t.Error("not found")
	}
	run(t, "mount", dir) // as fstab says
	defer func() { _ = syscall.Unmount(dir, 0) }()
	if found() {
		t.Error("not cleared")
	}
}
