package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/hosttest/executable"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/need"
)

// A time daemon that SIGSTOP has stopped is found by its name until it is continued. The host is this machine with no
// other process.
func TestRealDaemonStopped(t *testing.T) {
	need.Program(t, "sleep")
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	name := filepath.Join(root, "chronyd")
	if err := executable.Write(name, program); err != nil {
		t.Fatal(err)
	}
	daemon := exec.CommandContext(t.Context(), name, "1000")
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = daemon.Process.Kill(); _ = daemon.Wait() })
	pid := strconv.Itoa(daemon.Process.Pid)
	if err := os.Mkdir(filepath.Join(root, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{pid, strconv.Itoa(os.Getpid())} {
		if err := os.Symlink("/proc/"+p, filepath.Join(root, "proc", p)); err != nil {
			t.Fatal(err)
		}
	}
	now := host.Now()
	h := &host.Host{Files: host.Files{Root: root}, Paths: host.Paths{InitPID: os.Getpid()},
		Clock: func() finding.Timestamp { return now }}
	check := DaemonStopped()
	checktest.Expect(t, check, h)
	hosttest.Stop(t, daemon.Process.Pid)
	for range 3 {
		checktest.Expect(t, check, h, "daemon/chronyd=DaemonStopped warning")
	}
	if err := daemon.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	checktest.AwaitFindings(t, check, h, nil)
}
