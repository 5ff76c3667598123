package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/need"
)

// realDisks makes real devices fail. If the kernel lacks a feature, a test skips by name: a guest of a machine emulator
// with a distribution's kernel has all of them.
type realDisks struct {
	t    *testing.T
	host *host.Host
	dir  string
}

func newRealDisks(t *testing.T, programs ...string) realDisks {
	t.Helper()
	need.Root(t, "makes block devices")
	for _, program := range programs {
		need.Program(t, program)
	}
	return realDisks{t, &host.Host{Clock: host.Now, Prober: probe.NewProber(), Paths: host.Paths{InitPID: os.Getpid()}},
		t.TempDir()}
}

func (r realDisks) run(program string, arguments ...string) string {
	r.t.Helper()
	out, err := exec.Command(program, arguments...).CombinedOutput() //nolint:gosec // a fixed set of programs
	if err != nil {
		r.t.Fatalf("%s %s: %v: %s", program, strings.Join(arguments, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// loop makes a loop device of the given size in MiB.
func (r realDisks) loop(name string, mib int64) string {
	r.t.Helper()
	file := filepath.Join(r.dir, name)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Truncate(file, mib<<20); err != nil {
		r.t.Fatal(err)
	}
	device := r.run("losetup", "--find", "--show", file)
	r.t.Cleanup(func() { r.run("losetup", "--detach", device) })
	return device
}

// findings runs a check and returns "subject severity reason" of each finding.
func (r realDisks) findings(check detect.Check) []string {
	r.t.Helper()
	findings, err := check.Run(r.t.Context(), r.host)
	if _, none := errors.AsType[*finding.NotApplicableError](err); err != nil && !none {
		r.t.Fatal(err)
	}
	var got []string
	for _, f := range findings {
		r.t.Log(f.Message, f.Facts)
		got = append(got, fmt.Sprintf("%s %s %s", f.Subject, f.Severity, f.Reason))
	}
	return got
}

func (r realDisks) expect(check detect.Check, want ...string) {
	r.t.Helper()
	if diff := cmp.Diff(want, r.findings(check)); diff != "" {
		r.t.Fatalf("(-want +got):\n%s", diff)
	}
}

// eventuallyFinds runs the check until it finds exactly this.
func (r realDisks) eventuallyFinds(check detect.Check, want ...string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	ticks := time.NewTicker(100 * time.Millisecond)
	defer ticks.Stop()
	for !cmp.Equal(want, r.findings(check)) {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			r.t.Fatalf("never saw %q", want)
		}
	}
}

func TestRealThinPool(t *testing.T) {
	r := newRealDisks(t, "dmsetup", "losetup")
	out, err := exec.Command("dmsetup", "targets").Output()
	need.Has(t, err == nil && bytes.Contains(out, []byte("thin-pool")), "the device mapper with thin pools")
	metadata, data := r.loop("metadata", 4), r.loop("data", 64)
	r.run("dmsetup", "create", "nodeagent-pool", "--table",
		fmt.Sprintf("0 131072 thin-pool %s %s 128 100 1 error_if_no_space", metadata, data))
	t.Cleanup(func() { r.run("dmsetup", "remove", "--retry", "nodeagent-pool") })
	r.run("dmsetup", "message", "nodeagent-pool", "0", "create_thin 0")
	number := r.run("dmsetup", "info", "-c", "--noheadings", "-o", "major,minor", "nodeagent-pool")
	r.run("dmsetup", "create", "nodeagent-thin", "--table", fmt.Sprintf("0 262144 thin %s 0", number))
	t.Cleanup(func() { r.run("dmsetup", "remove", "--retry", "nodeagent-thin") })
	thin := "/dev/dm-" + r.run("dmsetup", "info", "-c", "--noheadings", "-o", "minor", "nodeagent-thin")
	check, pool := ThinPools(DefaultThinPoolsSettings()), "thin-pool/"+number
	fill := func(mib int64) {
		t.Helper()
		file, err := os.OpenFile(thin, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		_, _ = file.Write(make([]byte, mib<<20)) // fails when the pool is full
		_ = file.Sync()
	}
	r.expect(check)
	fill(16)
	r.expect(check)
	fill(60)
	r.expect(check, pool+" warning "+reasonPoolLow)
	fill(100)
	r.eventuallyFinds(check, pool+" warning "+reasonPoolFull)
	r.run("blkdiscard", thin)
	r.eventuallyFinds(check)
}

func TestRealArray(t *testing.T) {
	r := newRealDisks(t, "mdadm", "losetup")
	_, err := os.Stat("/proc/mdstat")
	need.Kernel(t, "md", err)
	a, b := r.loop("a", 32), r.loop("b", 32)
	r.run("mdadm", "--create", "/dev/md77", "--run", "--metadata=1.2", "--level=1", "--raid-devices=2", a, b)
	t.Cleanup(func() { r.run("mdadm", "--stop", "/dev/md77") })
	check := MDArrays()
	r.eventuallyFinds(check)
	r.run("mdadm", "/dev/md77", "--fail", b)
	r.expect(check, "raid-array/md77 warning "+reasonRAIDDegraded)
	r.run("mdadm", "/dev/md77", "--remove", b)
	r.expect(check, "raid-array/md77 warning "+reasonRAIDDegraded)
	r.run("mdadm", "--zero-superblock", b)
	r.run("mdadm", "/dev/md77", "--add", b)
	r.eventuallyFinds(check)
}

// scsiDebug makes a disk of the kernel's own SCSI simulator.
func (r realDisks) scsiDebug(options ...string) (name string) {
	r.t.Helper()
	_, err := os.Stat("/sys/bus/pseudo/drivers/scsi_debug")
	need.Has(r.t, err != nil, "scsi_debug for itself")
	args := append([]string{"scsi_debug", "dev_size_mb=16"}, options...)
	err = exec.Command("modprobe", args...).Run() //nolint:gosec // a fixed program
	need.Kernel(r.t, "scsi_debug", err)
	r.t.Cleanup(func() { r.run("modprobe", "-r", "scsi_debug") })
	for range 50 {
		if disks, _ := filepath.Glob("/sys/bus/pseudo/drivers/scsi_debug/adapter*/host*/target*/*/block/*"); len(
			disks) > 0 {
			return filepath.Base(disks[0])
		}
		r.run("udevadm", "settle")
	}
	r.t.Fatal("scsi_debug made no disk")
	return ""
}

func (r realDisks) write(file, text string) {
	r.t.Helper()
	if err := os.WriteFile(file, []byte(text), 0); err != nil {
		r.t.Fatal(err)
	}
}

func TestRealSCSIDisk(t *testing.T) {
	r := newRealDisks(t, "modprobe")
	disk := r.scsiDebug()
	states, health := SCSIDeviceState(), DiskHealth(nil)
	r.expect(states)
	r.expect(health)
	r.write("/sys/block/"+disk+"/device/state", "offline\n")
	r.expect(states, "device/"+disk+" warning "+reasonDiskOffline)
	r.write("/sys/block/"+disk+"/device/state", "running\n")
	r.expect(states)
}

// A disk that needs ten seconds for each I/O hangs as long.
func TestRealSCSIDiskHangs(t *testing.T) {
	r := newRealDisks(t, "modprobe")
	disk := r.scsiDebug()
	check := IOHang(IOHangSettings{After: time.Second, FatalAfter: 2 * time.Second})
	r.expect(check)
	r.write("/sys/bus/pseudo/drivers/scsi_debug/ndelay", "0")
	r.write("/sys/bus/pseudo/drivers/scsi_debug/delay", "1000") // jiffies: 4 to 10 s
	read := make(chan error, 1)
	go func() {
		file, err := os.Open("/dev/" + disk)
		if err == nil {
			_, err = file.ReadAt(make([]byte, 4096), 8<<20)
			file.Close()
		}
		read <- err
	}()
	r.eventuallyFinds(check, "device/"+disk+" warning "+reasonDiskHung)
	if err := <-read; err != nil {
		t.Error(err)
	}
	r.eventuallyFinds(check)
	r.write("/sys/bus/pseudo/drivers/scsi_debug/delay", "1")
}

// Existing disks report their health, or that they cannot.
func TestRealDisksAnswer(t *testing.T) {
	r := newRealDisks(t)
	r.expect(NVMeHealth(nil))
	r.expect(DiskHealth(nil))
	r.expect(EBSLimits())
}
