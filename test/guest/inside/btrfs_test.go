package inside

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// writeThrough writes and syncs a file, as far as the disks accept it.
func writeThrough(dir, name string) error {
	file, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Write(make([]byte, 1<<20)); err != nil {
		return err
	}
	return file.Sync()
}

// leg is a disk of a filesystem, a device over a RAM disk that can be made to fail all writes.
type leg struct {
	t          *testing.T
	name, disk string
	sectors    int
}

func newLeg(t *testing.T, name, disk string, sectors int) leg {
	t.Helper()
	l := leg{t, name, disk, sectors}
	mapped(t, name, l.table(false))
	return l
}

func (l leg) path() string { return "/dev/mapper/" + l.name }

func (l leg) table(failing bool) string {
	if failing {
		return fmt.Sprintf("0 %d flakey /dev/%s 0 0 3600 1 error_writes", l.sectors, l.disk)
	}
	return fmt.Sprintf("0 %d linear /dev/%s 0", l.sectors, l.disk)
}

func (l leg) setFailing(failing bool) {
	l.t.Helper()
	dmsetup(l.t, "suspend", l.name)
	dmsetup(l.t, "reload", l.name, "--table", l.table(failing))
	dmsetup(l.t, "resume", l.name)
}

// TestBtrfsDisk: one of the two disks of a btrfs filesystem fails writes, is repaired, is missing, and is replaced; at
// last both fail.
func TestBtrfsDisk(t *testing.T) {
	a := watch(t)
	run(t, "modprobe", "btrfs")
	run(t, "modprobe", "dm-flakey")
	first, second, spare := newLeg(t, "btrfs-a", "ram8", 400000), newLeg(t, "btrfs-b", "ram9", 400000),
		newLeg(t, "btrfs-c", "ram10", 800000)
	run(t, "mkfs.btrfs", "-q", "-f", "-m", "raid1", "-d", "raid1", first.path(), second.path())
	_, uuid, _ := strings.Cut(run(t, "btrfs", "filesystem", "show", first.path()), "uuid: ")
	subject := strings.Fields(uuid)[0] + "/2"
	dir := t.TempDir()
	unmount := func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "btrfs", "device", "scan", first.path(), second.path())
	run(t, "mount", first.path(), dir)
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })

	second.setFailing(true)
	if err := writeThrough(dir, "one"); err != nil {
		t.Errorf("one leg is left: %v", err)
	}
	a.awaitReason("btrfs-errors", "BtrfsDeviceErrors", subject, true)
	second.setFailing(false)
	run(t, "btrfs", "scrub", "start", "-B", dir)
	run(t, "btrfs", "device", "stats", "-z", dir)
	a.awaitReason("btrfs-errors", "", subject, false)

	unmount()
	run(t, "btrfs", "device", "scan", "--forget")
	run(t, "mount", "-o", "degraded", first.path(), dir)
	a.awaitReason("btrfs-errors", "BtrfsDeviceMissing", subject, true)
	run(t, "btrfs", "replace", "start", "-B", "-f", "2", spare.path(), dir)
	a.awaitReason("btrfs-errors", "", subject, false)

	first.setFailing(true)
	spare.setFailing(true)
	_ = writeThrough(dir, "two")
	a.awaitReason("filesystem-readonly", "", dir, true)
	expectReplay(t, "BtrfsReadOnly: filesystem/dm-", "")
	unmount()
	a.awaitReason("filesystem-readonly", "", dir, false)
}
