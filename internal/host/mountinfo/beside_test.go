package mountinfo_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/mountinfo"
	"github.com/nodeagent/nodeagent/test/need"
)

// stackOn mounts n times on the directory, each over the one before; between is called after each.
func stackOn(t *testing.T, dir string, n int, between func(i int)) {
	t.Helper()
	for i := range n {
		// By a descriptor of the top: a path would walk through all of them.
		top, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		copied, err := unix.OpenTree(top, "", unix.OPEN_TREE_CLONE|unix.AT_EMPTY_PATH|unix.O_CLOEXEC)
		if err == nil {
			err = unix.MoveMount(copied, "", top, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
		}
		if err := errors.Join(err, unix.Close(top), unix.Close(copied)); err != nil {
			t.Fatal(err)
		}
		between(i)
	}
}

// TestBesideTheStack: with a stack that costs too much, all other mounts are known, as the mount table has them: older
// ones, newer ones, those in between, and those on top of the stack.
func TestBesideTheStack(t *testing.T) {
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
	dir := t.TempDir()
	mount := func(name, fstype string, flags uintptr, data string) {
		t.Helper()
		point := filepath.Join(dir, name)
		must(os.MkdirAll(point, 0o755))
		must(unix.Mount("nodeagent "+name, point, fstype, flags, data))
	}
	must(unix.Mount("nodeagent-all", dir, "tmpfs", 0, ""))
	t.Cleanup(func() { must(unix.Unmount(dir, unix.MNT_DETACH)) })
	mount("before", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_NOATIME, "size=1m,mode=700")
	mount("stack", "tmpfs", 0, "")
	const stacked = 4000
	stackOn(t, filepath.Join(dir, "stack"), stacked, func(i int) {
		switch i {
		case 1500:
			mount("between", "tmpfs", unix.MS_RDONLY|unix.MS_NODIRATIME|unix.MS_SYNCHRONOUS, "")
		case 2500:
			mount("shared", "tmpfs", unix.MS_STRICTATIME|unix.MS_DIRSYNC, "huge=never")
			must(unix.Mount("", filepath.Join(dir, "shared"), "", unix.MS_SHARED, ""))
			must(os.Mkdir(filepath.Join(dir, "bind"), 0o755))
			must(unix.Mount(filepath.Join(dir, "shared"), filepath.Join(dir, "bind"), "", unix.MS_BIND, ""))
			must(unix.Mount("", filepath.Join(dir, "bind"), "", unix.MS_SLAVE, ""))
		case 3000:
			mount("stack/covered", "tmpfs", 0, "")
		}
	})
	mount("stack/on top", "tmpfs", 0, "")
	mount("after", "proc", unix.MS_NOEXEC, "hidepid=2")

	name := filepath.Join("/proc/self/task", strconv.Itoa(unix.Gettid()), "mountinfo")
	file, err := mountinfo.Open(name)
	must(err)
	all, err := mountinfo.Parse(file)
	must(errors.Join(err, file.Close()))
	if len(all) < stacked+8 {
		t.Fatalf("%d mounts", len(all))
	}

	// The first pages of the table take 10 ms each, which is too much for all of them. Steps beside the stack take as good as
	// no time: how many there are depends on the mounts that others make meanwhile, since IDs are the machine's.
	calls := 0 // of the clock, two a page
	reader := mountinfo.Reader{Cost: func() time.Duration {
		calls++
		return time.Duration(min(calls, 120)) * 10 * time.Millisecond
	}}
	t.Cleanup(func() { must(reader.Close()) })
	known, err := reader.Known(name, 16<<20)
	cut, ok := errors.AsType[*mountinfo.CutError](err)
	if !ok {
		t.Fatal(err)
	}
	if len(known)+cut.Hidden != len(all) || cut.Hidden == 0 {
		t.Errorf("%d known and %d hidden of %d: %v", len(known), cut.Hidden, len(all), cut)
	}
	inStack := func(m mountinfo.Mount) bool { return m.Point == filepath.Join(dir, "stack") }
	byID := func(a, b mountinfo.Mount) int { return a.ID - b.ID }
	want := slices.DeleteFunc(slices.Clone(all), func(m mountinfo.Mount) bool { return inStack(m) || filepath.Base(m.Point) == "covered" })
	got := slices.DeleteFunc(slices.Clone(known), func(m mountinfo.Mount) bool { return inStack(m) || filepath.Base(m.Point) == "covered" })
	slices.SortFunc(want, byID)
	slices.SortFunc(got, byID)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("other than the mount table (-want +got):\n%s", diff)
	}
	top := slices.IndexFunc(known, func(m mountinfo.Mount) bool {
		return inStack(m) && m.ID == all[slices.IndexFunc(all, func(m mountinfo.Mount) bool { return filepath.Base(m.Point) == "on top" })].Parent
	})
	if top < 0 {
		t.Error("the top of the stack, which is the mount that programs see, is not known")
	}

	mount("later", "tmpfs", 0, "")
	known, err = reader.Known(name, 16<<20)
	if !slices.ContainsFunc(known, func(m mountinfo.Mount) bool { return filepath.Base(m.Point) == "later" }) {
		t.Errorf("a mount made since is not known: %v", err)
	}
}
