package mutate_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/systemd"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/test/need"
)

// jobsNode is a Mutator with a fake systemd, which has one service and records requests.
type jobsNode struct {
	*mutate.Mutator
	service systemd.Service
	units   systemd.Units
	asked   []string
	result  string
}

func newJobs(t *testing.T) *jobsNode {
	t.Helper()
	n := &jobsNode{result: "done", service: systemd.Service{Name: "kubelet.service", Load: "loaded", Active: "active",
		MainPID: 7, Invocation: "ab", KillMode: "process"}}
	h := hosttest.Host(t, func(h *host.Host) {
		h.Systemd.Service = func(context.Context, string) (systemd.Service, error) { return n.service, nil }
		h.Systemd.Units = func(context.Context) (systemd.Units, error) { return n.units, nil }
	})
	m, err := mutate.New(h, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	m.SetJobs(func(verb, unit string) (string, error) {
		n.asked = append(n.asked, verb+" "+unit)
		return n.result, nil
	}, func(unit string) error {
		n.asked = append(n.asked, "reset "+unit)
		return nil
	})
	n.Mutator = m
	return n
}

// A service is restarted only in the inspected run, and only if no process but its main one is killed.
func TestRestartService(t *testing.T) {
	run := mutate.ServiceRun{Name: "kubelet.service", MainPID: 7, Invocation: "ab"}
	for name, test := range map[string]struct {
		change func(n *jobsNode, run *mutate.ServiceRun)
		want   string
	}{
		"as inspected":    {func(*jobsNode, *mutate.ServiceRun) {}, ""},
		"failed":          {func(n *jobsNode, _ *mutate.ServiceRun) { n.service.Active = "failed" }, ""},
		"another process": {func(n *jobsNode, _ *mutate.ServiceRun) { n.service.MainPID = 8 }, "no longer the object"},
		"another run":     {func(n *jobsNode, _ *mutate.ServiceRun) { n.service.Invocation = "cd" }, "no longer the object"},
		"a job":           {func(n *jobsNode, _ *mutate.ServiceRun) { n.service.Job = true }, "refused: systemd has a job"},
		"starting":        {func(n *jobsNode, _ *mutate.ServiceRun) { n.service.Active = "activating" }, "refused: kubelet.service is activating"},
		"stopped":         {func(n *jobsNode, _ *mutate.ServiceRun) { n.service.Active = "inactive" }, "refused: kubelet.service is inactive"},
		"control-group":   {func(n *jobsNode, _ *mutate.ServiceRun) { n.service.KillMode = "control-group" }, "refused: the KillMode"},
		"none":            {func(n *jobsNode, _ *mutate.ServiceRun) { n.service.KillMode = "none" }, "refused: the KillMode"},
		"a directory":     {func(n *jobsNode, _ *mutate.ServiceRun) { n.service.Changes = []string{"RuntimeDirectory=x"} }, "RuntimeDirectory=x"},
		"dependents":      {func(n *jobsNode, _ *mutate.ServiceRun) { n.service.Dependents = []string{"y.service"} }, "y.service"},
		"ExecStop":        {func(n *jobsNode, _ *mutate.ServiceRun) { n.service.StopRuns = true }, "do more than restart it"},
		"no service":      {func(_ *jobsNode, r *mutate.ServiceRun) { r.Name = "kubepods.slice" }, "refused: "},
		"a path":          {func(_ *jobsNode, r *mutate.ServiceRun) { r.Name = "../x.service" }, "refused: "},
	} {
		t.Run(name, func(t *testing.T) {
			n, mine := newJobs(t), run
			test.change(n, &mine)
			err := n.RestartService(t.Context(), mine)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
			if (len(n.asked) == 1) != (test.want == "") {
				t.Errorf("systemd was asked to %q", n.asked)
			}
		})
	}
	n := newJobs(t)
	n.result = "failed"
	if err := n.RestartService(t.Context(), run); err == nil || !strings.Contains(err.Error(), `systemd says "failed"`) {
		t.Error(err)
	}
}

func TestResetFailedUnit(t *testing.T) {
	n := newJobs(t)
	n.units.Failed = []systemd.Unit{{Name: "run-1.mount", Transient: true}, {Name: "broken.service"}}
	if err := n.ResetFailedUnit(t.Context(), "run-1.mount"); err != nil || len(n.asked) != 1 {
		t.Error(err, n.asked)
	}
	var refusal mutate.Refusal
	if err := n.ResetFailedUnit(t.Context(), "broken.service"); !errors.As(err, &refusal) || len(n.asked) != 1 {
		t.Error(err, n.asked)
	}
	if err := n.ResetFailedUnit(t.Context(), "gone.scope"); !errors.Is(err, mutate.ErrChanged) || len(n.asked) != 1 {
		t.Error(err, n.asked)
	}
}

// A name becomes part of a unit name only if it can be read only as a module name.
func TestLoadModule(t *testing.T) {
	n := newJobs(t)
	for _, name := range []string{"", "../x", "a b", "br@netfilter", "x.service", "a-b", strings.Repeat("a", 65)} {
		if err := n.LoadModule(t.Context(), name); err == nil || len(n.asked) > 0 {
			t.Errorf("%q: %v, %q", name, err, n.asked)
		}
	}
	if err := n.LoadModule(t.Context(), "br_netfilter"); err != nil || n.asked[0] != "start modprobe@br_netfilter.service" {
		t.Error(err, n.asked)
	}
}

// A setting is written only while it has the value found before. The setting that the test writes belongs to the test's
// own namespace, or is written with its current value.
func TestWriteSysctl(t *testing.T) {
	need.Root(t, "writes a kernel setting with the value that it has")
	n := newJobs(t)
	const name = "kernel/printk_ratelimit"
	text, err := os.ReadFile("/proc/sys/" + name)
	need.Kernel(t, name, err)
	value := strings.TrimSpace(string(text))
	if err := n.WriteSysctl(name, value+"0", value); !errors.Is(err, mutate.ErrChanged) {
		t.Error(err)
	}
	for _, wrong := range []string{"../sysrq-trigger", "/kernel/x", "kernel/./printk", "kernel/nodeagent_none", "kernel"} {
		if err := n.WriteSysctl(wrong, value, value); err == nil {
			t.Errorf("%s was written", wrong)
		}
	}
	if err := n.WriteSysctl(name, value, value+"\n1"); err == nil {
		t.Error("two lines were written")
	}
	if err := n.WriteSysctl(name, value, value); err != nil {
		t.Error(err)
	}
}

// A new network namespace has a loopback device without an address, in state down.
func TestRestoreLoopback(t *testing.T) {
	need.Root(t, "creates a network namespace")
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	need.Kernel(t, "network namespaces", unix.Unshare(unix.CLONE_NEWNET))
	listen := func() error {
		listener, err := net.Listen("tcp4", "127.0.0.1:0")
		if err == nil {
			var conn net.Conn
			if conn, err = net.Dial("tcp4", listener.Addr().String()); err == nil {
				err = conn.Close()
			}
			_ = listener.Close()
		}
		return err
	}
	if err := listen(); err == nil {
		t.Fatal("the namespace has a loopback device already")
	}
	n := newJobs(t)
	for range 2 { // the second time all is done
		if err := n.RestoreLoopback(); err != nil {
			t.Fatal(err)
		}
		if err := listen(); err != nil {
			t.Error(err)
		}
	}
}
