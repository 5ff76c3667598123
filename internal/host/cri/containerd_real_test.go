package cri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/test/need"
)

// realContainerd is a private containerd in its own directory.
type realContainerd struct {
	t      *testing.T
	dir    string
	socket string
	cmd    *exec.Cmd
}

func newRealContainerd(t *testing.T) *realContainerd {
	t.Helper()
	need.Root(t, "runs containerd")
	need.Program(t, "containerd")
	dir := hosttest.ShortDir(t)
	r := &realContainerd{t: t, dir: dir, socket: filepath.Join(dir, "c.sock")}
	config := fmt.Sprintf(`version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
  address = %q
[plugins."io.containerd.internal.v1.opt"]
  path = %q
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
[plugins."io.containerd.grpc.v1.cri".cni]
  conf_dir = %q
`, filepath.Join(dir, "root"), filepath.Join(dir, "state"), r.socket, filepath.Join(dir, "opt"), filepath.Join(dir, "cni"))
	if err := os.WriteFile(filepath.Join(dir, "config.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.kill)
	return r
}

func (r *realContainerd) start() {
	r.t.Helper()
	r.cmd = exec.Command("containerd", "--config", filepath.Join(r.dir, "config.toml"))
	log, err := os.Create(filepath.Join(r.dir, "log"))
	if err != nil {
		r.t.Fatal(err)
	}
	defer log.Close()
	r.cmd.Stdout, r.cmd.Stderr = log, log
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
}

func (r *realContainerd) kill() {
	if r.cmd != nil {
		r.cmd.Process.Kill()
		r.cmd.Wait()
		r.cmd = nil
	}
}

// eventually repeats ask until the runtime answers.
func (r *realContainerd) eventually(ask func(ctx context.Context) error) time.Duration {
	r.t.Helper()
	start := time.Now()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for ctx := hosttest.Within(r.t, time.Minute); ; {
		err := ask(ctx)
		if err == nil {
			return time.Since(start)
		}
		select {
		case <-ctx.Done():
			log, _ := os.ReadFile(filepath.Join(r.dir, "log"))
			r.t.Fatalf("containerd does not answer: %v\n%s", err, log)
		case <-tick.C:
		}
	}
}

func TestRealContainerd(t *testing.T) {
	r := newRealContainerd(t)
	runtime := newRuntime(t, r.socket)
	below, closer, err := NewContainerd(r.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closer.Close() })
	version := func(ctx context.Context) error {
		_, err := runtime.Version(ctx)
		return err
	}

	r.start()
	t.Logf("first answer after %s", r.eventually(version))
	askEverything(t, runtime, below)
	first, err := runtime.Process(t.Context())
	if err != nil || first.PID != r.cmd.Process.Pid || first.Comm != "containerd" || len(first.Args) != 3 {
		t.Errorf("Process() = %+v, %v; want containerd, PID %d", first, err, r.cmd.Process.Pid)
	}

	// A stopped daemon is not dead: calls run into their deadline, on an existing connection and on a new one, and the
	// process is still found.
	r.signal(syscall.SIGSTOP)
	fresh := newRuntime(t, r.socket)
	for name, ask := range map[string]host.Runtime{"old connection": runtime, "new connection": fresh} {
		start := time.Now()
		_, err := ask.Version(hosttest.Within(t, 2*time.Second))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("stopped, %s: Version() = %v after %s, want DeadlineExceeded", name, err, time.Since(start))
		}
	}
	if stopped, err := runtime.Process(hosttest.Within(t, 30*time.Second)); err != nil || stopped.PID != first.PID {
		t.Errorf("stopped: Process() = %+v, %v", stopped, err)
	}
	r.signal(syscall.SIGCONT)
	t.Logf("answer %s after SIGCONT", r.eventually(version))

	// kill -9 leaves the socket file. The error comes at once, and the successor answers the first call after it
	// listens.
	r.kill()
	start := time.Now()
	if err := version(hosttest.Within(t, 30*time.Second)); !errors.Is(err, syscall.ECONNREFUSED) ||
		time.Since(start) > 5*time.Second {
		t.Errorf("killed: Version() = %v after %s, want ECONNREFUSED at once", err, time.Since(start))
	}
	r.start()
	t.Logf("first answer %s after the restart", r.eventually(version))
	second, err := runtime.Process(t.Context())
	if err != nil || second.PID != r.cmd.Process.Pid {
		t.Errorf("restarted: Process() = %+v, %v; want PID %d", second, err, r.cmd.Process.Pid)
	}
}

func (r *realContainerd) signal(signal syscall.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(signal); err != nil {
		r.t.Fatal(err)
	}
	if signal == syscall.SIGSTOP { // all its threads, which continue for a moment
		if err := unix.Waitid(unix.P_PID, r.cmd.Process.Pid, nil, unix.WSTOPPED, nil); err != nil {
			r.t.Fatal(err)
		}
	}
}

// askEverything makes each call that an empty containerd can answer.
func askEverything(t *testing.T, runtime host.Runtime, below host.Containerd) {
	t.Helper()
	ctx := hosttest.Within(t, 20*time.Second)
	state, err := runtime.Status(ctx)
	if err != nil || len(state.GetStatus().GetConditions()) < 2 {
		t.Errorf("Status() = %v, %v; want RuntimeReady and NetworkReady", state, err)
	}
	sandboxes, err1 := runtime.Sandboxes(ctx)
	listed, err2 := runtime.Containers(ctx)
	containers, err3 := below.Containers(ctx)
	leases, err4 := below.Leases(ctx)
	tasks, err5 := below.Tasks(ctx)
	images, err6 := runtime.ImageBytes(ctx)
	if err := errors.Join(err1, err2, err3, err4, err5, err6); err != nil {
		t.Error(err)
	}
	if has, err := runtime.HasImage(ctx, "registry.example.com/none:1"); err != nil || has {
		t.Errorf("an empty containerd has an image: %v, %v", has, err)
	}
	if images != 0 {
		t.Errorf("an empty containerd has %d bytes of images", images)
	}
	if n := len(sandboxes) + len(listed) + len(containers) + len(leases) + len(tasks); n != 0 {
		t.Errorf("an empty containerd lists %d objects", n)
	}
	if _, err := runtime.SandboxStatus(ctx, "none"); status.Code(err) != codes.NotFound {
		t.Errorf("SandboxStatus(none) = %v, want NotFound", err)
	}
}
