package kernellog

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/kmsg"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/need"
)

// faultLog is the check over a log to which a test writes, with its own clock.
type faultLog struct {
	t     *testing.T
	up    time.Duration
	next  uint64
	log   *Log
	host  *host.Host
	store checktest.StateStore
}

func newFaultLog(t *testing.T, files host.Files) *faultLog {
	l := &faultLog{t: t, up: time.Hour, log: testLog(t), store: checktest.StateStore{}}
	l.log.setReadable(nil)
	l.host = &host.Host{NodeName: "n", Files: files, Paths: host.Paths{CgroupMount: "/sys/fs/cgroup"},
		Clock: func() finding.Timestamp { return finding.Timestamp{Boot: "b", SinceBoot: l.up} }}
	return l
}

// says logs a line of the kernel.
func (l *faultLog) says(text string) {
	l.log.Observe(kmsg.KernelRecord{Sequence: l.next, Up: l.up, Text: text})
	l.next++
}

// expect runs the check after some time, and fails unless it finds exactly these subjects.
func (l *faultLog) expect(later time.Duration, want ...string) {
	l.t.Helper()
	l.up += later
	check := New(DefaultSettings(), l.log, &detect.StateSources{}, l.store)
	findings, err := check.Run(l.t.Context(), l.host)
	var got []string
	for _, f := range findings {
		got = append(got, f.Subject.String())
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		l.t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
}

// restart starts another run of the agent in the same boot, which reads none of the earlier records.
func (l *faultLog) restart() {
	SaveKernelLog(l.log, &detect.StateSources{}, l.store, l.host.Clock(), true)
	l.log = testLog(l.t)
	RestoreKernelLog(l.log, &detect.StateSources{}, l.store, "b")
	l.log.setReadable(nil)
}

// vanishes logs a fault of an existing subject, and expects that the finding stays, even after a restart of the agent,
// until remove has removed the subject.
func (l *faultLog) vanishes(line, subject string, remove func()) {
	l.t.Helper()
	l.says(line)
	l.expect(0, subject)
	l.expect(2*time.Second, subject)
	l.expect(time.Minute, subject)
	l.restart()
	l.expect(time.Minute, subject)
	remove()
	l.expect(time.Minute)
	l.restart()
	l.expect(time.Minute)
}

func TestRealProcessGone(t *testing.T) {
	need.Program(t, "sleep")
	l := newFaultLog(t, host.Files{})
	start := func() *exec.Cmd {
		task := exec.CommandContext(t.Context(), "sleep", "1000")
		if err := task.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = task.Process.Kill(); _ = task.Wait() })
		return task
	}
	hung := func(task *exec.Cmd) string {
		return fmt.Sprintf("INFO: task sleep:%d blocked for more than 120 seconds.", task.Process.Pid)
	}
	task := start()
	l.vanishes(hung(task), "process/sleep", func() {
		if err := task.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = task.Wait()
	})
	// For a subject gone before it was seen, a replacement cannot be recognised.
	l.says(hung(task))
	l.expect(2*time.Second, "process/sleep")
	l.expect(time.Minute, "process/sleep")
	// A crashed program is gone, but that is the fault.
	task = start()
	l.says(fmt.Sprintf("web[%d]: segfault at 0 ip 0000000000401136 sp 00007ffc error 6 in web[401000+1000]",
		task.Process.Pid))
	l.expect(2*time.Second, "process/sleep", "process/web")
	if err := task.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = task.Wait()
	l.expect(time.Minute, "process/sleep", "process/web")
}

func TestRealCgroupGone(t *testing.T) {
	need.Root(t, "makes a cgroup")
	dir := "/sys/fs/cgroup"
	if _, err := os.Stat(dir + "/cgroup.controllers"); err != nil {
		dir += "/memory"
	}
	name := fmt.Sprintf("/nodeagent-test-%d", os.Getpid())
	dir += name
	need.Kernel(t, "cgroups", os.Mkdir(dir, 0o755))
	t.Cleanup(func() { _ = os.Remove(dir) })
	remove := func() {
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
	line := "cgroup: fork rejected by pids controller in " + name
	l := newFaultLog(t, host.Files{})
	l.vanishes(line, "cgroup/"+name, remove)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l.says(line)
	l.expect(2*time.Second, "cgroup/"+name)
	remove()
	if err := os.Mkdir(dir, 0o755); err != nil { // another one of the same name
		t.Fatal(err)
	}
	l.expect(time.Minute)
}

// A removed card is gone, a new card of the same name is another one, and a renamed card is the same.
func TestRealInterfaceGone(t *testing.T) {
	if !hosttest.OwnNetwork(t) {
		return
	}
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "sys"), 0o755); err != nil {
		t.Fatal(err)
	}
	need.Kernel(t, "sysfs", unix.Mount("sysfs", filepath.Join(root, "sys"), "sysfs", 0, ""))
	t.Cleanup(func() {
		if err := unix.Unmount(filepath.Join(root, "sys"), 0); err != nil {
			t.Error(err)
		}
	})
	add := func(name string) netlink.Link {
		link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
		need.Kernel(t, "bridges", netlink.LinkAdd(link))
		return link
	}
	remove := func(link netlink.Link) {
		if err := netlink.LinkDel(link); err != nil {
			t.Fatal(err)
		}
	}
	const line, subject = "NETDEV WATCHDOG: nic7 (x): transmit queue 0 timed out", "network-device/nic7"
	l := newFaultLog(t, host.Files{Root: root})
	link := add("nic7")
	l.vanishes(line, subject, func() { remove(link) })
	link = add("nic7")
	l.says(line)
	l.expect(2*time.Second, subject)
	remove(link)
	add("nic7")
	l.expect(time.Minute)
	l.says(line)
	l.expect(2*time.Second, subject)
	renamed, err := netlink.LinkByName("nic7")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetName(renamed, "nic8"); err != nil {
		t.Fatal(err)
	}
	l.expect(time.Minute, subject)
}

// A loop device always exists; another file behind it makes it another disk.
func TestRealDiskGone(t *testing.T) {
	disk := hosttest.NewLoopFS(t, "ext4")
	l := newFaultLog(t, host.Files{})
	l.says("EXT4-fs error (device " + disk.Name() + "): ext4_lookup:1855: inode #2: comm ls: deleted inode referenced: 12")
	subject := "filesystem/" + disk.Name()
	l.expect(2*time.Second, subject)
	l.expect(time.Minute, subject)
	run := func(args ...string) {
		if out, err := exec.CommandContext(t.Context(), "losetup", args...).CombinedOutput(); err != nil {
			t.Fatalf("losetup %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	run("--detach", disk.Device)
	run(disk.Device, disk.Image)
	l.expect(time.Minute)
}

// A subject that cannot be seen is not gone: the filesystem that shows it is unmounted, or is another one.
func TestUnseenIsNotGone(t *testing.T) {
	root := t.TempDir()
	class := filepath.Join(root, "sys/class/block")
	for _, dir := range []string{class + "/sdq", class + "/sdr"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	l := newFaultLog(t, host.Files{Root: root})
	l.says("EXT4-fs error (device sdq): x")
	l.says("nvme nvme7: Removing after probe failure status: -19")
	if err := os.MkdirAll(filepath.Join(root, "sys/class/nvme/nvme7"), 0o755); err != nil {
		t.Fatal(err)
	}
	both := []string{"device/nvme7", "filesystem/sdq"}
	l.expect(2*time.Second, both...)
	if err := os.RemoveAll(filepath.Join(root, "sys/class/nvme/nvme7")); err != nil { // the fault itself
		t.Fatal(err)
	}
	l.expect(time.Minute, both...)
	if err := os.Rename(class, class+".away"); err != nil {
		t.Fatal(err)
	}
	l.expect(time.Minute, both...)
	if err := os.Mkdir(class, 0o755); err != nil {
		t.Fatal(err)
	}
	l.expect(time.Minute, both...)
	if err := os.Remove(class); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(class+".away", class); err != nil {
		t.Fatal(err)
	}
	l.expect(time.Minute, both...)
	if err := os.Remove(class + "/sdq"); err != nil {
		t.Fatal(err)
	}
	l.expect(time.Minute, both[0])
}
