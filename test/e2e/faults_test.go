package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/lab"
)

// TestFaultsOfTheNode makes a fault behind each of the agent's clients: a filesystem that hangs (children that may
// hang), a pod that cannot start (kubelet's API), a CSI driver that has died (sockets), a stopped runtime and a stopped
// kubelet (gRPC, processes). The installed daemon finds each fault, and its end.
func TestFaultsOfTheNode(t *testing.T) {
	l := openLab(t)
	often := map[string]any{"every": "2s"}
	a := install(t, l, harness.Overrides{"checks": map[string]any{
		"csi-registration": often,
		"kubelet-health":   map[string]any{"every": "2s", "timeout": "1s"},
		"runtime-health":   map[string]any{"every": "2s", "timeout": "1s"},
		"hung-mounts":      map[string]any{"every": "2s", "patience": "1s"},
		"stuck-pods":       map[string]any{"every": "2s", "startAfter": "3s", "pullAfter": "3s"},
	}})
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	stuck := fmt.Sprintf(strings.Replace(stuckManifest, "lab-node", l.NodeName, 1), "faults-stuck",
		"127.0.0.1:9/absent:1", "", "")
	var hung string
	t.Run("of what pods use", func(t *testing.T) {
		hung = hosttest.HangingFUSE(t)
		deadDriver(t, l)
		t.Cleanup(func() {
			if err := l.DeletePod(context.WithoutCancel(t.Context()), "default", "faults-stuck"); err != nil {
				t.Error(err)
			}
		})
		if err := l.KubectlApply(t.Context(), stuck); err != nil {
			t.Fatal(err)
		}
		awaitFinding(t, a, "MountHung", hung, true)
		awaitFinding(t, a, "PodStuckStarting", "default/faults-stuck", true)
		awaitFinding(t, a, "CSISocketStale", "", true)
	})
	t.Run("of what runs them", func(t *testing.T) {
		for _, component := range []string{"containerd", "kubelet"} {
			if err := l.Signal(component, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Signal(component, syscall.SIGCONT) })
		}
		awaitFinding(t, a, "KubeletStopped", "", true)
		awaitFinding(t, a, "RuntimeStopped", "", true)
	})
	awaitFinding(t, a, "MountHung", hung, false)
	awaitFinding(t, a, "PodStuckStarting", "default/faults-stuck", false)
	awaitFinding(t, a, "CSISocketStale", "", false)
	awaitFinding(t, a, "KubeletStopped", "", false)
	awaitFinding(t, a, "RuntimeStopped", "", false)
	// kubelet was stopped for longer than the apiserver waits for it
	if err := l.WaitNodeReady(t.Context()); err != nil {
		t.Error(err)
	}
}

// deadDriver leaves the sockets of a killed CSI driver, until the test ends.
func deadDriver(t *testing.T, l *lab.Lab) {
	t.Helper()
	const name = "dead.csi.example.com"
	binary, err := buildDriver()
	if err != nil {
		t.Fatal(err)
	}
	driver := exec.CommandContext(t.Context(), binary, "-name", name, "-kubelet-root", l.Paths.KubeletRoot,
		"-node-id", "lab-node-id")
	if err := driver.Start(); err != nil {
		t.Fatal(err)
	}
	plugin := filepath.Join(l.Paths.KubeletRoot, "plugins", name)
	sockets := []string{filepath.Join(l.Paths.KubeletRoot, "plugins_registry", name+"-reg.sock"),
		filepath.Join(plugin, "csi.sock")}
	t.Cleanup(func() {
		for _, name := range append(sockets, plugin) {
			_ = os.Remove(name)
		}
	})
	err = harness.WaitFor(t.Context(), "the driver's sockets", func() error {
		_, err1 := os.Stat(sockets[0])
		_, err2 := os.Stat(sockets[1])
		return errors.Join(err1, err2)
	})
	_ = driver.Process.Kill()
	_ = driver.Wait()
	if err != nil {
		t.Fatal(err)
	}
}

// awaitFinding waits until the daemon reports a finding, or no longer reports it. Without a name any subject matches.
func awaitFinding(t *testing.T, a *harness.Agent, reason, name string, there bool) {
	t.Helper()
	began := time.Now()
	err := harness.WaitFor(t.Context(), fmt.Sprintf("%s of %q to be found: %t", reason, name, there),
		func() error {
			status, err := a.Status(t.Context())
			if err != nil {
				return err
			}
			for _, f := range status.Findings {
				if f.Reason == reason && (name == "" || f.Subject.Name == name) {
					if there {
						t.Logf("%s: %s", time.Since(began).Round(time.Second), f.Message)
						return nil
					}
					return errors.New(f.Message)
				}
			}
			if there {
				return fmt.Errorf("findings %+v", status.Findings)
			}
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
}
