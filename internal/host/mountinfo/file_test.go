package mountinfo_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/mountinfo"
	"github.com/nodeagent/nodeagent/test/need"
)

// A table is returned again only while it has no change that the kernel counts.
func TestRecentSeesWhatTheKernelCounts(t *testing.T) {
	need.Root(t, "mounts in a mount namespace of its own")
	runtime.LockOSThread() // never unlocked: the thread ends with its namespace
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(unix.Unshare(unix.CLONE_NEWNS))
	must(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	must(os.Mkdir(a, 0o755))
	must(os.Mkdir(b, 0o755))
	name := filepath.Join("/proc/self/task", strconv.Itoa(unix.Gettid()), "mountinfo")
	var r mountinfo.Reader
	t.Cleanup(func() { must(r.Close()) })
	read := func() []mountinfo.Mount {
		t.Helper()
		file, err := mountinfo.Open(name)
		must(err)
		table, err := r.ReadFile(file, 16<<20)
		must(err)
		return table
	}
	if _, ok, _ := r.Recent(name, time.Hour, nil); ok {
		t.Error("a table before any was read")
	}
	for _, step := range []struct {
		what   string
		change func() error
	}{
		{"mount", func() error { return unix.Mount("nodeagent-test", a, "tmpfs", 0, "size=4k") }},
		{"the mount becomes read-only", func() error {
			return unix.Mount("", a, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
		}},
		{"the filesystem becomes read-only", func() error {
			return unix.Mount("", a, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
		}},
		{"bind", func() error { return unix.Mount(a, b, "", unix.MS_BIND, "") }},
		{"unmount", func() error { return unix.Unmount(b, 0) }},
		{"move", func() error { return unix.Mount(a, b, "", unix.MS_MOVE, "") }},
		{"mount on top", func() error { return unix.Mount("nodeagent-test", b, "tmpfs", 0, "size=8k") }},
		{"lazy unmount", func() error { return unix.Unmount(b, unix.MNT_DETACH) }},
	} {
		before := read() // all in this thread: t.Run would go on in another one, and its namespace
		if table, ok, _ := r.Recent(name, time.Hour, nil); !ok || cmp.Diff(before, table) != "" {
			t.Errorf("%s: nothing has changed, and the table must be read again", step.what)
		}
		must(step.change())
		for _, who := range []string{"first", "second"} {
			if _, ok, _ := r.Recent(name, time.Hour, nil); ok {
				t.Errorf("%s: the %s who asks is told that the table is what it was", step.what, who)
			}
		}
		if cmp.Diff(before, read()) == "" {
			t.Errorf("%s: nothing has changed: the step proves nothing", step.what)
		}
	}
	must(unix.Unmount(b, 0))
	read()
	if _, ok, _ := r.Recent(name, -1, nil); ok {
		t.Error("a table that is too old")
	}
	if _, ok, _ := r.Recent("/proc/self/mountinfo", time.Hour, nil); ok {
		t.Error("the table of another process")
	}
}

// TestRecentSeesWhatTheKernelDoesNotCount: a filesystem that changes by way of another namespace, as by itself.
func TestRecentSeesWhatTheKernelDoesNotCount(t *testing.T) {
	need.Root(t, "mounts in a mount namespace of its own")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	runtime.LockOSThread() // never unlocked: the thread ends with its namespace
	must(unix.Unshare(unix.CLONE_NEWNS))
	must(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	own := unix.Gettid()
	a, b := t.TempDir(), t.TempDir()
	must(unix.Mount("nodeagent-a", a, "tmpfs", 0, "size=4k"))
	must(unix.Mount("nodeagent-b", b, "tmpfs", 0, "size=4k"))
	t.Cleanup(func() { must(errors.Join(unix.Unmount(a, 0), unix.Unmount(b, 0))) })
	name := filepath.Join("/proc/self/task", strconv.Itoa(own), "mountinfo")
	var r mountinfo.Reader
	t.Cleanup(func() { must(r.Close()) })
	of := func(source string) func(mountinfo.Mount) bool {
		return func(m mountinfo.Mount) bool { return m.Source == source }
	}
	unchanged := func(wanted func(mountinfo.Mount) bool) bool {
		_, ok, _ := r.Recent(name, time.Hour, wanted)
		return ok
	}
	file, err := mountinfo.Open(name)
	must(err)
	_, err = r.ReadFile(file, 16<<20)
	must(err)
	for range 2 {
		if !unchanged(of("nodeagent-a")) || !unchanged(of("nodeagent-b")) {
			t.Error("nothing has changed, and the table must be read again")
		}
	}
	namespace, err := unix.Open(filepath.Join(filepath.Dir(name), "ns/mnt"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must(err)
	defer unix.Close(namespace)
	changed := make(chan error)
	go func() { // in a copy of the namespace, with other mounts of the same filesystems
		runtime.LockOSThread()
		changed <- errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(namespace, unix.CLONE_NEWNS),
			unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", b, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	}()
	must(<-changed)
	if !unchanged(of("nodeagent-a")) {
		t.Error("another filesystem has changed, and the table must be read again")
	}
	if unchanged(of("nodeagent-b")) {
		t.Error("the filesystem is read-only, and the table is returned as it was")
	}
}

// The kernel counts no changes of a file outside /proc.
func TestRecentIsForTheKernelsFiles(t *testing.T) {
	name := filepath.Join(t.TempDir(), "mountinfo")
	if err := os.WriteFile(name, []byte(text(table(3))), 0o600); err != nil {
		t.Fatal(err)
	}
	var r mountinfo.Reader
	file, err := mountinfo.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	if mounts, err := r.ReadFile(file, 16<<20); err != nil || len(mounts) != 3 {
		t.Fatal(mounts, err)
	}
	if _, ok, _ := r.Recent(name, time.Hour, nil); ok {
		t.Error("a file that may have changed unnoticed")
	}
	if file, err = mountinfo.Open(name); err != nil {
		t.Fatal(err)
	}
	if _, err := r.ReadFile(file, 10); err == nil {
		t.Error("a table above the limit")
	}
}
