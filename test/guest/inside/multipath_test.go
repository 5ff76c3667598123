package inside

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

// scsi guards the emulated SCSI hosts, so that a test that adds one knows which disk is new.
var scsi sync.Mutex

// scsiDisks adds emulated SCSI hosts with one disk each, and returns the disks. They are the same 8 MiB, of which the
// first blocks from 8 to 15 are unreadable.
func scsiDisks(t *testing.T, n int) (disks []string) {
	t.Helper()
	scsi.Lock()
	defer scsi.Unlock()
	run(t, "modprobe", "sd_mod")
	run(t, "modprobe", "scsi_debug", "add_host=0", "dev_size_mb=8", "medium_error_start=8", "medium_error_count=8",
		"opts=2")
	find := func() []string {
		found, _ := filepath.Glob("/sys/bus/pseudo/drivers/scsi_debug/adapter*/host*/target*/*/block/*")
		for i := range found {
			found[i] = filepath.Base(found[i])
		}
		return found
	}
	before := find()
	put(t, "/sys/bus/pseudo/drivers/scsi_debug/add_host", fmt.Sprint(n))
	eventually(t, "SCSI disks", func() bool {
		disks = slices.DeleteFunc(find(), func(disk string) bool {
			return slices.Contains(before, disk) || !exists("/dev/"+disk)
		})
		return len(disks) == n
	})
	for _, disk := range disks {
		_ = os.WriteFile("/sys/block/"+disk+"/device/timeout", []byte("30"), 0)
	}
	return disks
}

// device returns a disk's numbers in the form of the device mapper.
func device(disk string) string { return read("/sys/block/" + disk + "/dev") }

// waiter reads one block of a mapped device not read so far, under its own process name.
func waiter(t *testing.T, device, name string, block int) *exec.Cmd {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	if err := os.Symlink("/bin/dd", program); err != nil {
		t.Fatal(err)
	}
	return exec.Command(program, "if=/dev/mapper/"+device, "of=/dev/null", "bs=4096", "count=1",
		fmt.Sprintf("skip=%d", block), "iflag=direct")
}

// TestMultipath: the kernel gives up a path to a disk, then the other one while requests wait for a path; at last
// multipathd gives up both while requests fail. Each time the paths come back.
func TestMultipath(t *testing.T) {
	a := watch(t)
	run(t, "modprobe", "dm-multipath")
	run(t, "modprobe", "dm-round-robin")
	const name = "mpathtest"
	paths := scsiDisks(t, 2)
	table := fmt.Sprintf("0 16384 multipath 1 queue_if_no_path 0 1 1 round-robin 0 2 1 %s 1 %s 1", device(paths[0]),
		device(paths[1]))
	disk := mapped(t, name, table, "--uuid", "mpath-3600a0b8000test")
	t.Cleanup(func() { dmsetup(t, "message", name, "0", "fail_if_no_path") })
	set := func(state string, paths ...string) {
		for _, path := range paths {
			put(t, "/sys/block/"+path+"/device/state", state+"\n")
			if state == "running" { // multipathd's reaction
				dmsetup(t, "message", name, "0", "reinstate_path "+device(path))
			}
		}
	}
	set("offline", paths[0])
	for block := range 4 { // alternately
		if out, err := waiter(t, name, "reader", 16+block).CombinedOutput(); err != nil {
			t.Errorf("one path is left: %v: %s", err, out)
		}
	}
	a.awaitReason("multipath", "MultipathDegraded", disk, true)
	a.awaitReason("kernel-log", "MultipathPathFailed", device(paths[0]), true)

	set("offline", paths[1])
	reader := waiter(t, name, "pathless", 32)
	if err := reader.Start(); err != nil {
		t.Fatal(err)
	}
	a.awaitReason("multipath", "MultipathNoPath", disk, true)
	a.awaitReason("hung-tasks", "TaskHung", "pathless", true)
	set("running", paths...)
	if err := reader.Wait(); err != nil {
		t.Errorf("what waited for a path failed: %v", err)
	}
	a.awaitReason("multipath", "", disk, false)
	a.awaitReason("hung-tasks", "", "pathless", false)
	for _, path := range paths {
		a.awaitReason("kernel-log", "MultipathPathFailed", device(path), false)
	}

	dmsetup(t, "message", name, "0", "fail_if_no_path")
	// like multipathd after a failure of its own test of a path: the SCSI layer does not know about it
	for _, path := range paths {
		dmsetup(t, "message", name, "0", "fail_path "+device(path))
	}
	if out, err := waiter(t, name, "reader", 64).CombinedOutput(); err == nil {
		t.Errorf("no path is left: %s", out)
	}
	a.awaitReason("multipath", "MultipathNoPath", disk, true)
	a.awaitReason("kernel-log", "BlockIOError", disk, true)
	set("running", paths...)
	if out, err := waiter(t, name, "reader", 96).CombinedOutput(); err != nil {
		t.Errorf("paths are back: %v: %s", err, out)
	}
	a.awaitReason("multipath", "", disk, false)
}
