package inside

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

// mapped makes a device mapper device of a table over a RAM disk, and removes it with the test.
func mapped(t *testing.T, name, table string) string {
	t.Helper()
	run(t, "modprobe", "brd", "rd_nr=4", "rd_size=131072")
	run(t, "modprobe", "dm-mod")
	run(t, "dmsetup", "--noudevsync", "create", name, "--table", table)
	t.Cleanup(func() { run(t, "dmsetup", "--noudevsync", "remove", "--force", name) })
	target, err := os.Readlink("/dev/mapper/" + name)
	if err != nil {
		return name
	}
	return target[strings.LastIndex(target, "/")+1:]
}

// TestFlakyDisk: an ext4 filesystem whose disk begins to fail every write is found, and what is mounted anew is well.
func TestFlakyDisk(t *testing.T) {
	a := watch(t, "")
	run(t, "modprobe", "dm-flakey")
	mapped(t, "flaky", "0 131072 flakey /dev/ram0 0 3600 0")
	run(t, "mkfs.ext4", "-q", "-F", "/dev/mapper/flaky")
	dir := t.TempDir()
	run(t, "modprobe", "ext4")
	run(t, "mount", "-o", "errors=remount-ro", "/dev/mapper/flaky", dir)
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	run(t, "dmsetup", "--noudevsync", "suspend", "--noflush", "flaky")
	run(t, "dmsetup", "reload", "flaky", "--table", "0 131072 flakey /dev/ram0 0 0 3600 1 error_writes")
	run(t, "dmsetup", "--noudevsync", "resume", "flaky")
	for i := range 20 { // until the journal cannot be written
		_ = os.WriteFile(fmt.Sprintf("%s/file%d", dir, i), make([]byte, 1<<16), 0o600)
	}
	syscall.Sync()
	a.awaitReason("filesystem-readonly", "", "", true)
	if err := syscall.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	a.awaitReason("filesystem-readonly", "", "", false)
}
