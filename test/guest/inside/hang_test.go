package inside

import (
	"os/exec"
	"testing"
)

// throttle lets a drive of the guest answer one byte a second, or as fast as it can. What it was asked for meanwhile waits
// in the emulated drive, as it does in a network disk whose server is away.
func throttle(t *testing.T, drive string, stuck bool) {
	t.Helper()
	bytes := "0"
	if stuck {
		bytes = "1"
	}
	wish(t, "block_set_io_throttle "+drive+" "+bytes+" 0 0 0 0 0")
}

// nvme loads the driver of the guest's NVMe disk as clouds want it, without a timeout of its own, and returns the disk.
func nvme(t *testing.T) string {
	t.Helper()
	run(t, "modprobe", "nvme-core", "io_timeout=4294967")
	run(t, "modprobe", "nvme")
	const disk = "nvme0n1"
	eventually(t, "NVMe disk", func() bool { return read("/sys/block/"+disk+"/size") != "" })
	return disk
}

// TestHungDisk: a disk that stops answering while somebody reads from a device above it is found, and so is that it
// answers again. (dm-delay is no such disk: since Linux 6.0 what it holds back is not yet counted as in flight.)
func TestHungDisk(t *testing.T) {
	needGuest(t)
	disk := nvme(t)
	a := watch(t, "")
	mapped(t, "above", "0 65536 linear /dev/"+disk+" 0")
	throttle(t, "nvme-drive", true)
	readers := []*exec.Cmd{
		exec.Command("dd", "if=/dev/mapper/above", "of=/dev/null", "bs=64k", "count=4", "iflag=direct"), // the first passes
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
