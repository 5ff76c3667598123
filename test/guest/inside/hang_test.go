package inside

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// throttle lets a drive of the guest answer one byte a second, or at full speed. Requests meanwhile wait in the
// emulated drive, as in a network disk whose server is away.
func throttle(t *testing.T, drive string, stuck bool) {
	t.Helper()
	bytes := "0"
	if stuck {
		bytes = "1"
	}
	monitor(t, "block_set_io_throttle "+drive+" "+bytes+" 0 0 0 0 0")
}

// nvme loads the driver of the guest's NVMe disks as recommended by clouds, without its own timeout, and returns one
// disk.
func nvme(t *testing.T, serial string) (disk string) {
	t.Helper()
	run(t, "modprobe", "nvme-core", "io_timeout=4294967")
	run(t, "modprobe", "nvme")
	eventually(t, "NVMe disk", func() bool {
		controllers, err := filepath.Glob("/sys/class/nvme/*")
		for _, c := range controllers {
			disk = filepath.Base(c) + "n1"
			if read(c+"/serial") == serial && read("/sys/block/"+disk+"/size") != "" {
				return err == nil
			}
		}
		return false
	})
	return disk
}

// TestHungDisk: a disk that stops answering while a device above it is read is found, and so is its recovery. (dm-delay
// is no such disk: since Linux 6.0 the I/O that it holds back does not count as in flight.)
func TestHungDisk(t *testing.T) {
	a := watch(t)
	disk := nvme(t, "guest")
	mapped(t, "above", "0 65536 linear /dev/"+disk+" 0")
	throttle(t, "nvme-drive", true)
	readers := []*exec.Cmd{
		// the first passes
		exec.Command("dd", "if=/dev/mapper/above", "of=/dev/null", "bs=64k", "count=4", "iflag=direct"),
		exec.Command("dd", "if=/dev/mapper/above", "of=/dev/null", "bs=64k", "count=4", "skip=8", "iflag=direct"),
	}
	for _, reader := range readers {
		if err := reader.Start(); err != nil {
			t.Fatal(err)
		}
	}
	answer := func() {
		throttle(t, "nvme-drive", false)
		for _, reader := range readers {
			if err := reader.Wait(); err != nil {
				t.Errorf("what waited for the disk failed: %v", err)
			}
		}
	}
	defer func() {
		if t.Failed() {
			answer()
		}
	}()
	a.awaitReason("io-hang", "DiskHung", disk, true)
	for _, f := range a.status().Findings {
		if f.Check == "io-hang" && f.Subject.Name != disk {
			t.Errorf("%s hangs because of %s and is no cause: %+v", f.Subject.Name, disk, f)
		}
	}
	answer()
	a.awaitReason("io-hang", "DiskHung", disk, false)
}

// TestSuspendedDevice: somebody suspended a device and forgot it, like a tool that died halfway. Every access to it
// hangs, which no I/O counter shows: it is held back above. The device is named.
func TestSuspendedDevice(t *testing.T) {
	a := watch(t)
	put(t, "/proc/sys/kernel/hung_task_timeout_secs", "20")
	mapped(t, "forgotten", "0 65536 linear /dev/ram5 0")
	dmsetup(t, "suspend", "forgotten")
	reader := exec.Command("dd", "if=/dev/mapper/forgotten", "of=/dev/null", "bs=4096", "count=1", "iflag=direct")
	if err := reader.Start(); err != nil {
		t.Fatal(err)
	}
	answer := func() {
		dmsetup(t, "resume", "forgotten")
		_ = reader.Wait()
	}
	defer func() {
		if t.Failed() {
			answer()
		}
	}()
	a.awaitFound("hung-tasks", func(f believed) bool {
		return f.Reason == "TaskHung" && f.Subject.Name == "dd" && strings.Contains(f.Message, "forgotten")
	}, true)
	answer()
	a.awaitReason("hung-tasks", "TaskHung", "dd", false)
}

func has(s status, check, reason string) bool {
	for _, f := range s.Findings {
		if f.Check == check && f.Reason == reason {
			return true
		}
	}
	return false
}
