package hosttest

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/test/need"
)

// FUSEControl mounts the kernel's control filesystem of FUSE connections, which systemd mounts at
// /sys/fs/fuse/connections, at a private directory of the test, and returns that.
func FUSEControl(t testing.TB) string {
	t.Helper()
	need.Root(t, "mounts fusectl")
	dir := t.TempDir()
	need.Kernel(t, "fusectl", unix.Mount("fusectl", dir, "fusectl", 0, ""))
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// AbortFUSE ends the connection of a FUSE mount: all waiting and all later callers get an error.
func AbortFUSE(t testing.TB, mountpoint string) {
	t.Helper()
	dir := FUSEControl(t)
	mounts, err := mount.TableOf((&host.Host{}), os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		if m.Point == mountpoint {
			if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(m.Minor), "abort"), []byte("1"), 0o200); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("%s is not mounted", mountpoint)
}
