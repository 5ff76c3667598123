package holders_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/holders"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/hosttest/thread"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/test/need"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// tmpfs mounts a tmpfs that the test may keep busy.
func tmpfs(t *testing.T) string {
	t.Helper()
	need.Root(t, "mounts")
	dir := t.TempDir()
	if err := unix.Mount("test", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func mountAt(t *testing.T, h *host.Host, point string) *mount.Mount {
	t.Helper()
	mounts, err := mount.Table(h)
	if err != nil {
		t.Fatal(err)
	}
	n := slices.IndexFunc(mounts, func(m mount.Mount) bool { return m.Point == point })
	if n < 0 {
		t.Fatalf("%s is not mounted", point)
	}
	return &mounts[n]
}

// start runs a program until the test ends, and waits until it runs.
func start(t *testing.T, change func(*exec.Cmd), name string, args ...string) int {
	t.Helper()
	cmd := exec.Command(name, args...)
	if change != nil {
		change(cmd)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for {
		data, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/comm")
		if err != nil {
			t.Fatal(err)
		}
		if strings.TrimSpace(string(data)) == filepath.Base(name) {
			return cmd.Process.Pid
		}
		select {
		case <-t.Context().Done():
			t.Fatal("did not start")
		case <-time.After(time.Millisecond):
		}
	}
}

func TestHolders(t *testing.T) {
	dir := tmpfs(t)
	h := &host.Host{Paths: host.Paths{InitPID: os.Getpid(), CgroupRoot: "/"}}
	file := filepath.Join(dir, "busy")
	if err := os.WriteFile(file, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	open, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	mapped, err := unix.Mmap(int(open.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mapped)
	cwd := start(t, func(c *exec.Cmd) { c.Dir = dir }, "/bin/sleep", "600")
	elsewhere := start(t, func(c *exec.Cmd) {
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS} // copies all mounts
	}, "/bin/sleep", "600")

	cwdOfThreads := thread.WithoutMain(t, func(c *exec.Cmd) { c.Dir = dir })
	threadsElsewhere := thread.WithoutMain(t, func(c *exec.Cmd) {
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	})

	quiet := t.TempDir()
	found, incomplete, err := holders.Holders(t.Context(), h, []holders.Holdable{
		{Path: dir, Mount: mountAt(t, h, dir)}, {Path: quiet}, {Path: dir + "x"},
	})
	if err != nil || incomplete != "" {
		t.Fatal(incomplete, err)
	}
	for _, want := range []holders.Holding{
		{PID: os.Getpid(), How: "open-file"}, {PID: os.Getpid(), How: "mapped"},
		{PID: cwd, Comm: "sleep", How: "cwd"}, {PID: elsewhere, Comm: "sleep", How: "mount-namespace"},
		{PID: cwdOfThreads, How: "cwd"}, {PID: threadsElsewhere, How: "mount-namespace"},
	} {
		if !slices.ContainsFunc(found[0], func(h holders.Holding) bool {
			return h.PID == want.PID && h.How == want.How && (want.Comm == "" || h.Comm == want.Comm)
		}) {
			t.Errorf("lacks %+v in %+v", want, found[0])
		}
	}
	if len(found[1]) != 0 || len(found[2]) != 0 {
		t.Errorf("no process holds these: %+v %+v", found[1], found[2])
	}
}

// A process stuck on a dead filesystem does not hang the search, and its descriptor is found.
func TestHoldersOfHungMount(t *testing.T) {
	dir := hosttest.HangingFUSE(t)
	h := &host.Host{Paths: host.Paths{InitPID: os.Getpid()}}
	stuck := exec.Command("/bin/ls", dir)
	if err := stuck.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // runs before the mount is aborted, so it must wait for that
		_ = stuck.Process.Kill()
		go stuck.Wait()
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	found, incomplete, err := holders.Holders(ctx, h, []holders.Holdable{{Path: dir, Mount: mountAt(t, h, dir)}})
	if err != nil || incomplete != "" {
		t.Fatal(incomplete, err)
	}
	if !slices.ContainsFunc(found[0], func(h holders.Holding) bool {
		return h.PID == os.Getpid() && h.How == "open-file"
	}) {
		t.Errorf("the descriptor of this test is not among %+v", found[0])
	}
}

func TestHoldersSaysWhenItStopped(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, incomplete, err := holders.Holders(ctx, (&host.Host{}), []holders.Holdable{{Path: "/nowhere"}})
	if err != nil || !strings.Contains(incomplete, "after 0 of") {
		t.Errorf("got %q, %v", incomplete, err)
	}
}

func TestNetworkNamespaceOfThreads(t *testing.T) {
	own, err := holders.NetworkNamespace(&host.Host{}, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := holders.NetworkNamespace(&host.Host{}, thread.WithoutMain(t, nil)); err != nil || got != own {
		t.Errorf("%d, %v, want %d", got, err, own)
	}
}

func TestParseNamespace(t *testing.T) {
	if inode, err := holders.ParseNamespace("net:[4026531840]", "net"); err != nil || inode != 4026531840 {
		t.Error(inode, err)
	}
	for _, bad := range []string{"", "net:[]", "net:[1", "mnt:[1]", "net:[-1]", "net:1"} {
		if inode, err := holders.ParseNamespace(bad, "net"); err == nil || inode != 0 {
			t.Errorf("%q: %d", bad, inode)
		}
	}
}

// A file whose path no link can show hides no other file.
func TestOpensBesideLongPath(t *testing.T) {
	const name = "a-directory-with-a-long-name-a-directory-with-a-long-name-a-directory-with-a-long-name-a-directory-with-a-long-name"
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for range 60 {
		if err := unix.Mkdirat(int(dir.Fd()), name, 0o700); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		dir.Close()
		dir = os.NewFile(uintptr(fd), name)
	}
	defer dir.Close()
	if _, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(dir.Fd()))); !errors.Is(err, syscall.ENAMETOOLONG) {
		t.Fatalf("the path is shown: %v", err)
	}
	later, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer later.Close()
	file, err := holders.Opens(&host.Host{}, os.Getpid(), func(target string) bool { return target == "/dev/zero" })
	if err != nil || file != "/dev/zero" {
		t.Errorf("%q, %v", file, err)
	}
}
