package hosttest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/test/need"
)

// LoopFS is a filesystem on a loop device, for real failures.
type LoopFS struct {
	FSType string
	Image  string // the file behind the device
	Device string // /dev/loopN

	t testing.TB
}

// NewLoopFS makes a filesystem (ext4, xfs, btrfs), not mounted yet. Only for root, and needs losetup and mkfs.
func NewLoopFS(t testing.TB, fstype string) *LoopFS {
	t.Helper()
	need.Root(t, "sets up a loop device")
	need.Program(t, "losetup", "mkfs."+fstype)
	l := &LoopFS{FSType: fstype, Image: filepath.Join(t.TempDir(), fstype+".img"), t: t}
	if err := os.WriteFile(l.Image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const size = 320 << 20 // mkfs.xfs needs at least 300 MiB; sparse
	if err := os.Truncate(l.Image, size); err != nil {
		t.Fatal(err)
	}
	l.run("mkfs."+fstype, "-q", l.Image)
	l.Device = strings.TrimSpace(l.run("losetup", "--find", "--show", l.Image))
	t.Cleanup(func() { l.run("losetup", "--detach", l.Device) })
	return l
}

// Name returns the kernel's name of the device, loopN.
func (l *LoopFS) Name() string { return filepath.Base(l.Device) }

// Mount mounts the filesystem on a directory, which it creates. It is unmounted at the latest when the test ends.
func (l *LoopFS) Mount(dir, options string) {
	l.t.Helper()
	l.mount(dir, l.Device, "-t", l.FSType, "-o", options)
}

// Bind makes from visible at to as well.
func (l *LoopFS) Bind(from, to string, readOnly bool) {
	l.t.Helper()
	l.mount(to, from, "--bind")
	if readOnly {
		l.run("mount", "-o", "remount,bind,ro", to)
	}
}

// Remount changes options with mount(8).
func (l *LoopFS) Remount(dir, options string) {
	l.t.Helper()
	l.run("mount", "-o", "remount,"+options, dir)
}

// Unmount unmounts the topmost mount of a directory.
func (l *LoopFS) Unmount(dir string) {
	l.t.Helper()
	if err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW); err != nil {
		l.t.Fatalf("unmount %s: %v", dir, err)
	}
}

// Check repairs the unmounted filesystem with its own tool.
func (l *LoopFS) Check() {
	l.t.Helper()
	// 1: errors were corrected
	err := exec.Command("fsck."+l.FSType, "-fy", l.Device).Run() //nolint:gosec // a fixed set of programs
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() > 1) {
		l.t.Fatalf("fsck: %v", err)
	}
}

// TriggerError makes ext4 believe that it found corruption, and returns when the kernel has counted the error: a kernel
// worker does that a moment later.
func (l *LoopFS) TriggerError() {
	l.t.Helper()
	dir := filepath.Join("/sys/fs/ext4", l.Name())
	count := func() string {
		data, err := os.ReadFile(filepath.Join(dir, "errors_count"))
		if err != nil {
			l.t.Fatal(err)
		}
		return string(data)
	}
	before := count()
	if err := os.WriteFile(filepath.Join(dir, "trigger_fs_error"), []byte("nodeagent test"), 0o200); err != nil {
		l.t.Fatal(err)
	}
	ticks := time.NewTicker(5 * time.Millisecond)
	defer ticks.Stop()
	for range 12000 {
		if count() != before {
			return
		}
		<-ticks.C
	}
	l.t.Fatalf("%s: the error was not counted within a minute", dir)
}

// Shutdown shuts down a mounted XFS or ext4 filesystem without any further write, as after a lost log.
func (l *LoopFS) Shutdown(dir string) {
	l.t.Helper()
	file, err := os.Open(dir)
	if err != nil {
		l.t.Fatal(err)
	}
	defer file.Close()
	const goingDown, noLogFlush = 0x8004587d, 2 // XFS_IOC_GOINGDOWN, which ext4 has too
	if err := unix.IoctlSetPointerInt(int(file.Fd()), goingDown, noLogFlush); err != nil {
		l.t.Fatalf("shut down %s: %v", dir, err)
	}
}

// Shrink truncates the file behind the device, as if a network disk was removed or broken: the rest returns errors.
func (l *LoopFS) Shrink(size int64) {
	l.t.Helper()
	if err := os.Truncate(l.Image, size); err != nil {
		l.t.Fatal(err)
	}
	l.run("losetup", "--set-capacity", l.Device)
}

func (l *LoopFS) mount(dir, from string, arguments ...string) {
	l.t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		l.t.Fatal(err)
	}
	l.run("mount", append(arguments, from, dir)...)
	l.t.Cleanup(func() {
		// A test may already have unmounted it (EINVAL).
		if err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW); err != nil && err != unix.EINVAL {
			l.t.Errorf("unmount %s: %v", dir, err)
		}
	})
}

func (l *LoopFS) run(program string, arguments ...string) string {
	l.t.Helper()
	out, err := exec.Command(program, arguments...).CombinedOutput() //nolint:gosec // a fixed set of programs
	if err != nil {
		l.t.Fatalf("%s %s: %v: %s", program, strings.Join(arguments, " "), err, out)
	}
	return string(out)
}
