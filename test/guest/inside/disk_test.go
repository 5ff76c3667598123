package inside

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ram loads the driver of RAM disks; they take memory as they are written. Each test has its own ones.
func ram(t *testing.T) {
	t.Helper()
	run(t, "modprobe", "brd", "rd_nr=16", "rd_size=409600")
}

func dmsetup(t *testing.T, args ...string) {
	t.Helper()
	run(t, "dmsetup", append([]string{"--noudevsync"}, args...)...)
}

// mapped creates a device mapper device from a table over a disk, removes it with the test, and returns its kernel
// name.
func mapped(t *testing.T, name, table string, options ...string) string {
	t.Helper()
	ram(t)
	run(t, "modprobe", "dm-mod")
	dmsetup(t, append([]string{"create", name, "--table", table}, options...)...)
	t.Cleanup(func() { dmsetup(t, "remove", "--force", name) })
	var st syscall.Stat_t
	if err := syscall.Stat("/dev/mapper/"+name, &st); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("dm-%d", st.Rdev&0xff)
}

// TestFlakyDisk: filesystems whose disk starts to fail every write are found, and after another mount they are healthy.
func TestFlakyDisk(t *testing.T) {
	t.Parallel()
	for i, mkfs := range []string{"mkfs.ext4 -q -F", "mkfs.xfs -q -f"} {
		words := strings.Fields(mkfs)
		kind := strings.TrimPrefix(words[0], "mkfs.")
		t.Run(kind, func(t *testing.T) {
			a := watch(t)
			run(t, "modprobe", "dm-flakey")
			run(t, "modprobe", kind)
			const sectors = 700000 // the minimum of XFS is 300 MB
			disk := fmt.Sprintf("/dev/ram%d", i)
			name := "flaky-" + kind
			kernelName := mapped(t, name, fmt.Sprintf("0 %d flakey %s 0 3600 0", sectors, disk))
			run(t, words[0], append(words[1:], "/dev/mapper/"+name)...)
			dir := t.TempDir()
			run(t, "mount", "/dev/mapper/"+name, dir)
			t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
			if kind == "ext4" {
				run(t, "mount", "-o", "remount,errors=remount-ro", dir)
			}
			time.Sleep(10 * time.Second) // the checks have run: an error is recognised by the earlier count
			dmsetup(t, "suspend", "--noflush", name)
			dmsetup(t, "reload", name, "--table", fmt.Sprintf("0 %d flakey %s 0 0 3600 1 error_writes", sectors, disk))
			dmsetup(t, "resume", name)
			for i := range 20 { // until the journal cannot be written
				_ = os.WriteFile(fmt.Sprintf("%s/file%d", dir, i), make([]byte, 1<<16), 0o600)
			}
			if d, err := os.Open(dir); err == nil {
				_ = d.Sync()
				_ = d.Close()
			}
			here := func(f believed) bool {
				return strings.Contains(f.Message, dir) || strings.Contains(f.Message, kernelName)
			}
			a.awaitFound("filesystem-readonly", here, true)
			stopped := func(f believed) bool { // neither the node nor a pod needs it
				return here(f) && f.Reason != "FilesystemErrors" && f.Severity == "warning"
			}
			a.awaitFound("filesystem-readonly", stopped, true)
			if err := syscall.Unmount(dir, 0); err != nil {
				t.Fatal(err)
			}
			a.awaitFound("filesystem-readonly", here, false)
		})
	}
}

// TestArrayLosesADisk: a software RAID loses a member, and is rebuilt.
func TestArrayLosesADisk(t *testing.T) {
	a := watch(t)
	ram(t)
	run(t, "modprobe", "raid1")
	run(t, "mdadm", "--create", "/dev/md0", "--run", "--level=1", "--raid-devices=2", "--metadata=1.2", "--size=20480",
		"/dev/ram2", "/dev/ram3")
	t.Cleanup(func() { run(t, "mdadm", "--stop", "/dev/md0") })
	run(t, "mdadm", "/dev/md0", "--fail", "/dev/ram3", "--remove", "/dev/ram3")
	a.awaitReason("md-arrays", "", "md0", true)
	run(t, "mdadm", "/dev/md0", "--add", "/dev/ram3")
	a.awaitReason("md-arrays", "", "md0", false)
}

// TestThinPoolFull: a pool gives out more than it has, is full, and is made larger.
func TestThinPoolFull(t *testing.T) {
	a := watch(t)
	run(t, "modprobe", "dm-thin-pool")
	ram(t)
	put(t, "/dev/ram6", string(make([]byte, 4096))) // a pool's metadata begin with a block of zeros
	const small, large = "0 16384 thin-pool /dev/ram6 /dev/ram7 128 0", "0 65536 thin-pool /dev/ram6 /dev/ram7 128 0"
	mapped(t, "pool", small)
	dmsetup(t, "message", "pool", "0", "create_thin 0")
	mapped(t, "thin", "0 65536 thin /dev/mapper/pool 0")
	run(t, "dd", "if=/dev/zero", "of=/dev/mapper/thin", "bs=64k", "count=128", "oflag=direct") // the whole pool
	a.awaitReason("thin-pools", "", "", true)
	dmsetup(t, "suspend", "pool")
	dmsetup(t, "reload", "pool", "--table", large)
	dmsetup(t, "resume", "pool")
	a.awaitReason("thin-pools", "", "", false)
}

// TestWornDisk: an NVMe disk reports that it becomes unreliable, and is removed. A healthy disk is queried only each
// hour, so this one reports it before the first query.
func TestWornDisk(t *testing.T) {
	a := watch(t)
	warn := func(bits string) { monitor(t, "qom-set /machine/peripheral/worn smart_critical_warning "+bits) }
	warn("4")
	controller := strings.TrimSuffix(nvme(t, "worn"), "n1")
	a.awaitReason("nvme-health", "NVMeDegraded", controller, true)
	put(t, "/sys/class/nvme/"+controller+"/device/remove", "1")
	a.awaitReason("nvme-health", "", controller, false)
}

// TestSCSIDisk: a block of a SCSI disk is unreadable, which only the kernel reports; then the kernel gives up the disk.
func TestSCSIDisk(t *testing.T) {
	a := watch(t)
	disk := scsiDisks(t, 1)[0]
	if text, err := os.ReadFile("/dev/" + disk); err == nil {
		t.Fatalf("the bad block was read: %d bytes", len(text))
	}
	a.awaitReason("kernel-log", "", disk, true)
	put(t, "/sys/block/"+disk+"/device/state", "offline\n")
	a.awaitReason("scsi-device-state", "DiskOffline", disk, true)
	put(t, "/sys/block/"+disk+"/device/state", "running\n")
	a.awaitReason("scsi-device-state", "", disk, false)
}
