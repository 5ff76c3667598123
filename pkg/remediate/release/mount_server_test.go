package release

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

// takeOver binds a filesystem into a dead pod's directory and takes the original mount away.
func (w *world) takeOver(uid, origin string) mutate.Mount {
	w.t.Helper()
	m := w.Mount(origin, w.PodDir(uid, "volumes/kubernetes.io~nfs/data"), "", unix.MS_BIND)
	w.detach(m.Point)
	if err := unix.Unmount(origin, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		w.t.Fatal(err)
	}
	return m
}

// detach unmounts a filesystem when the test ends, before anything accesses it and waits for its server.
func (w *world) detach(point string) {
	w.t.Cleanup(func() { _ = unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
}

// A live server is not taken for dead, however slow and whatever its error: its connection stays, and no unmount is
// forced.
func TestLivingServerIsNotForced(t *testing.T) {
	for name, test := range map[string]struct {
		delay, timeouts time.Duration
		errno           unix.Errno
		want            string
	}{
		"answers after 3 s": {3 * time.Second, 100 * time.Millisecond, unix.ENOSYS,
			"not proven to be gone"},
		"says what it cannot reach is gone":  {0, 0, unix.ENOTCONN, "busy"},
		"says that what it serves was ended": {0, 0, unix.ESHUTDOWN, "busy"},
		"has an old handle":                  {0, 0, unix.ESTALE, "busy"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.settings.VerifyWithin, w.timeouts.server = time.Second, test.timeouts
			uid := mutatetest.UID(t)
			server := hosttest.ServeFUSE(t, test.delay, test.errno)
			m := w.takeOver(uid, server.Point)
			w.foreignProcessIn(m.Point)
			text := describe(w.release())
			if !strings.Contains(text, test.want) {
				t.Errorf("want %q: %s", test.want, text)
			}
			if got := w.Mounts(m.Point); len(got) != 1 || got[0] != m {
				t.Errorf("mount: %+v", got)
			}
			before := server.Requests.Load()
			var st unix.Statfs_t
			if err := unix.Statfs(m.Point, &st); !errors.Is(err, test.errno) || server.Requests.Load() == before {
				t.Errorf("the connection was ended: %v", err)
			}
		})
	}
}

// foreignProcessIn starts a process, not our child, that holds the directory open without asking its server.
func (w *world) foreignProcessIn(dir string) int {
	w.t.Helper()
	// The shell leaves the process to init, which is the test in this namespace: it is reaped when the namespace ends.
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), dir)
	defer file.Close()
	parent := exec.Command("/bin/sh", "-c", "sleep 600 & echo $!; exec sleep 600")
	parent.ExtraFiles = []*os.File{file}
	out, err := parent.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		w.t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		_ = parent.Process.Kill()
		_ = parent.Wait()
	})
	return pid
}

// The mount of a permanently lost server is unmounted by force, and lazily if needed, but never while a process uses
// it.
func TestDeadServer(t *testing.T) {
	for name, test := range map[string]struct {
		foreign, shared bool
		want            string // why it stays; empty: it goes
	}{
		"nobody uses it":          {false, false, ""},
		"another process uses it": {true, false, "held by"},
		"also mounted elsewhere":  {false, true, "the same filesystem is also mounted on"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.settings.VerifyWithin = time.Second
			uid := mutatetest.UID(t)
			server := hosttest.ServeFUSE(t, 0, unix.ENOSYS)
			m := w.takeOver(uid, server.Point)
			if test.shared {
				w.detach(w.Mount(m.Point, filepath.Join(w.Dir, "elsewhere"), "", unix.MS_BIND).Point)
			}
			if test.foreign {
				w.foreignProcessIn(m.Point)
			}
			server.Kill()
			text := describe(w.release())
			if stays := len(w.Mounts(m.Point)) == 1; stays != (test.want != "") || !strings.Contains(text, test.want) {
				t.Errorf("stays %v: %s", stays, text)
			}
		})
	}
}
