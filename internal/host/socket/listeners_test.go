package socket_test

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/hosttest/thread"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/socket"
	"github.com/nodeagent/nodeagent/internal/host/tailfile"
	"github.com/nodeagent/nodeagent/test/need"
)

// listenerEnv names the socket on which this test's own child listens, in new namespaces like a driver's pod.
const listenerEnv = "NODEAGENT_TEST_LISTENER"

// TestListenerChild is not a test but that child: it binds the plugin's folder to another path, as a hostPath volume
// does, and listens there.
func TestListenerChild(t *testing.T) {
	dir, name, ok := strings.Cut(os.Getenv(listenerEnv), ":")
	need.Flag(t, ok, "a child of another test")
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", "/mnt", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir("/mnt/csi", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(dir, "/mnt/csi", "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if !filepath.IsAbs(name) {
		if err := os.Chdir("/mnt"); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(listenerEnv+"_UNLINK") != "" {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	os.Stdout.WriteString("listening\n")
	for {
		if _, err := l.Accept(); err != nil {
			return
		}
	}
}

// A driver's pod has its own network and mount namespaces: its socket is in another table, under another name.
func TestListenersOfPods(t *testing.T) {
	need.Root(t, "makes namespaces")
	for name, test := range map[string]struct {
		bind   string
		unlink bool
	}{
		"absolute":         {"/mnt/csi/csi.sock", false},
		"relative":         {"csi/csi.sock", false},
		"its file deleted": {"/mnt/csi/csi.sock", true},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			plugins := filepath.Join(root, "plugins")
			driver := filepath.Join(plugins, "a.example.com")
			if err := os.MkdirAll(driver, 0o700); err != nil {
				t.Fatal(err)
			}
			child := exec.Command("/proc/self/exe", "-test.run=^TestListenerChild$")
			child.Env = append(os.Environ(), listenerEnv+"="+driver+":"+test.bind)
			if test.unlink {
				child.Env = append(child.Env, listenerEnv+"_UNLINK=1")
			}
			child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
				Pdeathsig: syscall.SIGKILL}
			out, err := child.StdoutPipe()
			if err := errors.Join(err, child.Start()); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
			line := make([]byte, 10)
			if _, err := out.Read(line); err != nil || string(line[:9]) != "listening" {
				t.Fatalf("%q, %v", line, err)
			}
			h := &host.Host{Paths: host.Paths{InitPID: os.Getpid()}}
			listeners, err := socket.Listeners(t.Context(), h, plugins, filepath.Join(root, "none"))
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(listeners, func(l socket.Listener) bool { return l.PID == child.Process.Pid })
			want := socket.Listener{Path: filepath.Join(driver, "csi.sock"), Inside: true, PID: child.Process.Pid}
			if i < 0 || listeners[i] != want {
				t.Errorf("%+v", listeners)
			}
			if elsewhere, err := socket.Listeners(t.Context(), h, filepath.Join(root, "none")); err != nil ||
				slices.ContainsFunc(elsewhere, func(l socket.Listener) bool { return l.Inside }) {
				t.Errorf("elsewhere: %+v, %v", elsewhere, err)
			}
		})
	}
}

// A path through a link on the host's side leads to the same folder.
func TestListenersBehindLink(t *testing.T) {
	dir, err := os.MkdirTemp("", "l")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "disk/plugins"), 0o700),
		os.Symlink("disk", filepath.Join(dir, "kubelet"))); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "disk/plugins/csi.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h := &host.Host{Paths: host.Paths{InitPID: os.Getpid()}}
	listeners, err := socket.Listeners(t.Context(), h, filepath.Join(dir, "kubelet/plugins"))
	if want := filepath.Join(dir, "kubelet/plugins/csi.sock"); err != nil ||
		!slices.ContainsFunc(listeners, func(l socket.Listener) bool {
			return l.Inside && l.Path == want && l.PID == os.Getpid()
		}) {
		t.Errorf("%+v, %v", listeners, err)
	}
}

// A file or directory that can be bound to another path is found wherever it is mounted.
func TestMountedFrom(t *testing.T) {
	need.Root(t, "mounts")
	dir := t.TempDir()
	for _, sub := range []string{"kept/a/b", "kept2", "living"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	h := &host.Host{Paths: host.Paths{InitPID: os.Getpid()}}
	if at, err := mount.MountedFrom(t.Context(), h, filepath.Join(dir, "kept")); err != nil ||
		at != (mount.MountedAt{}) {
		t.Fatalf("%+v, %v", at, err)
	}
	// Only in the mount namespace of another process, like a container's volume.
	for command, point := range map[string]string{
		"mount --bind kept/a/b living":   "living",
		"mount -t tmpfs tmpfs kept/a/b":  "kept/a/b",
		"mount --bind kept living":       "living",
		"mount --bind living/../kept2 .": "",
	} {
		child := exec.Command("sh", "-c", "mount --make-rprivate / && "+command+" && echo ready && exec sleep 60")
		child.Dir = dir
		child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
		out, err := child.StdoutPipe()
		if err := errors.Join(err, child.Start()); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 6)); err != nil {
			t.Fatal(err)
		}
		at, err := mount.MountedFrom(t.Context(), h, filepath.Join(dir, "kept"))
		want := mount.MountedAt{}
		if point != "" {
			want = mount.MountedAt{PID: child.Process.Pid, Point: filepath.Join(dir, point)}
		}
		if err != nil || at != want {
			t.Errorf("%s: %+v, %v", command, at, err)
		}
		_ = child.Process.Kill()
		_ = child.Wait()
	}
}

// Reads never wait for a file that is not regular.
func TestReadsDoNotWait(t *testing.T) {
	dir := t.TempDir()
	pipe, socket := filepath.Join(dir, "pipe"), filepath.Join(dir, "socket")
	if err := errors.Join(unix.Mkfifo(pipe, 0o600), unix.Mknod(socket, unix.S_IFSOCK|0o600, 0)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(pipe, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var files host.Files
		for _, name := range []string{pipe, socket, filepath.Join(dir, "link"), dir, "/dev/zero"} {
			if _, err := files.Read(name); err == nil {
				t.Errorf("read %s: no error", name)
			}
			if _, _, err := tailfile.Tail(files, name, 10); err == nil {
				t.Errorf("tail %s: no error", name)
			}
			if _, err := tailfile.Head(files, name, 10); err == nil {
				t.Errorf("head %s: no error", name)
			}
			if name == dir {
				continue
			}
			if _, err := files.List(name); err == nil {
				t.Errorf("list %s: no error", name)
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("a read waits for the other end of a pipe")
		if f, err := os.OpenFile(pipe, os.O_WRONLY|unix.O_NONBLOCK, 0); err == nil { // releases it
			f.Close()
		}
	}
}

// A process whose main thread has ended still listens.
func TestListenerWithoutMainThread(t *testing.T) {
	dir := hosttest.ShortDir(t)
	l, err := net.Listen("unix", filepath.Join(dir, "csi.sock"))
	if err != nil {
		t.Fatal(err)
	}
	file, err := l.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	pid := thread.WithoutMain(t, func(c *exec.Cmd) { c.ExtraFiles = []*os.File{file} })
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := errors.Join(file.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	all, err := socket.Listeners(t.Context(), &host.Host{Paths: host.Paths{InitPID: os.Getpid()}}, dir)
	if err != nil {
		t.Fatal(err)
	}
	want := socket.Listener{Path: filepath.Join(dir, "csi.sock"), Inside: true, PID: pid}
	if !slices.Contains(all, want) {
		t.Errorf("lacks %+v in %+v", want, all)
	}
}
