package daemonset

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/test/harness"
)

// testBesidePackage runs an agent on the host beside the DaemonSet's, like a package: the later one is on standby, and
// takes over when the other one ends.
func testBesidePackage(t *testing.T, c *cluster) {
	c.install(t, true)
	first := agentPID(t)
	onHost := startOnHost(t, c)
	onHost.awaitLog(t, "on standby", fmt.Sprintf("process %d", first))
	onHost.awaitStatus(t, first)

	c.uninstall(t)
	onHost.awaitLog(t, "taking over")
	onHost.awaitStatus(t, onHost.PID())

	c.install(t, false)
	p := c.await1(t, "the agent of the DaemonSet to be on standby", func(p pod) bool {
		return p.Status.ContainerStatuses[0].State.Running != nil && strings.Contains(c.logs(t), "on standby")
	})
	t.Log(c.logs(t))
	// Five times the readiness probe's period of hasty, and it does not restart repeatedly.
	stayed := time.Now().Add(5 * time.Second)
	await(t, "a while to pass", func() error {
		p = c.await1(t, "the pod", func(p pod) bool { return true })
		if ready(p) {
			t.Fatal("an agent on standby is ready")
		}
		if time.Now().Before(stayed) {
			return fmt.Errorf("too early")
		}
		return nil
	})
	if n := p.Status.ContainerStatuses[0].RestartCount; n != 0 {
		t.Errorf("%d restarts while standing back", n)
	}
	if err := onHost.Stop(); err != nil {
		t.Fatal(err)
	}
	p = c.await1(t, "the agent of the DaemonSet to take over", ready)
	if n := p.Status.ContainerStatuses[0].RestartCount; n != 0 {
		t.Errorf("%d restarts", n)
	}
	onHost.awaitStatus(t, agentPID(t))
}

// onHost is the agent as a package starts it: with the default paths of its state and its socket.
type onHost struct{ *harness.Agent }

func startOnHost(t *testing.T, c *cluster) onHost {
	t.Helper()
	dir := filepath.Join(c.Dir, "beside")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	a := onHost{&harness.Agent{Lab: c.Lab, Dir: dir, Binary: c.binary, Config: filepath.Join(dir, "config.yaml")}}
	if err := a.Configure(harness.Overrides{
		"stateDir": c.stateDir(), "socket": socket,
		"paths": map[string]any{"kubeconfig": c.Paths.KubeletKubeconfig, "kubeletRoot": c.Paths.KubeletRoot},
	}); err != nil {
		t.Fatal(err)
	}
	// Start waits until an agent answers: here the other one does.
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Stop(); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return a
}

func (a onHost) awaitLog(t *testing.T, words ...string) {
	t.Helper()
	await(t, "the log to contain "+strings.Join(words, " and "), func() error {
		for _, w := range words {
			if !strings.Contains(a.LogTail(), w) {
				return fmt.Errorf("the log is:\n%s", a.LogTail())
			}
		}
		return nil
	})
}

func (a onHost) awaitStatus(t *testing.T, pid int) {
	t.Helper()
	await(t, fmt.Sprintf("process %d to answer", pid), func() error {
		status, err := a.Status(context.WithoutCancel(t.Context()))
		if err == nil && status.PID != pid {
			err = fmt.Errorf("process %d answers", status.PID)
		}
		return err
	})
}
