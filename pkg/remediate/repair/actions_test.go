package repair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/systemd"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/setting"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// unitNode is a node with a containerd.service of these processes: PID, command, and a file that each holds open.
type unitNode struct {
	t       *testing.T
	tools   Tools
	service systemd.Service
	err     error
}

func newUnitNode(t *testing.T) *unitNode {
	t.Helper()
	n := &unitNode{t: t, service: systemd.Service{Name: "containerd.service", Load: "loaded", Active: "active",
		Sub: "running", MainPID: 10, Invocation: "ab", KillMode: "process", ManualAllowed: true, Age: time.Hour}}
	h := hosttest.Host(t, func(h *host.Host) {
		h.Systemd.Service = func(_ context.Context, name string) (systemd.Service, error) {
			s := n.service
			s.Name = name
			return s, n.err
		}
	})
	m, err := mutate.New(h, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	n.tools = Tools{Mutator: m, Host: h, Settings: Defaults(), Log: slog.New(slog.DiscardHandler)}
	n.process(10, "containerd", "/dev/null")
	return n
}

func (n *unitNode) process(pid int, comm, opened string) {
	n.t.Helper()
	dir := n.tools.Host.Files.Path(fmt.Sprintf("/proc/%d", pid))
	for name, text := range map[string]string{
		"stat": fmt.Sprintf("%d (%s) S 1 %d %d 0 -1 4194560 1 0 0 0 1 1 0 0 20 0 1 0 100 1000 10 18446744073709551615 "+
			"1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0", pid, comm, pid, pid),
		fmt.Sprintf("task/%d/fdinfo/3", pid): "pos:\t0\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			n.t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			n.t.Fatal(err)
		}
	}
	fds := filepath.Join(dir, fmt.Sprintf("task/%d/fd", pid))
	if err := os.MkdirAll(fds, 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Symlink(opened, filepath.Join(fds, "3")); err != nil {
		n.t.Fatal(err)
	}
	n.service.Processes = append(n.service.Processes, pid)
}

// The unit to restart is that of the node's distribution, unless the operator names one. A unit that runs more than
// kubelet or the runtime is not restarted unless named: on a K3s server it is the control plane.
func TestRestartUnitOfDistributions(t *testing.T) {
	for name, test := range map[string]struct {
		id, check, socket string
		units             Units
		unit              string // empty: refused
	}{
		"kubeadm":                     {id: "kubeadm", check: "kubelet-health", unit: "kubelet.service"},
		"no distribution was found":   {check: "kubelet-health", unit: "kubelet.service"},
		"snap":                        {id: "k8s-snap", check: "kubelet-health", unit: "snap.k8s.kubelet.service"},
		"K3s":                         {id: "k3s", check: "kubelet-health"},
		"K3s, named":                  {id: "k3s", check: "kubelet-health", units: Units{Kubelet: "k3s-agent.service"}, unit: "k3s-agent.service"},
		"RKE2":                        {id: "rke2", check: "kubelet-health"},
		"k0s":                         {id: "k0s", check: "kubelet-health"},
		"MicroK8s":                    {id: "microk8s", check: "kubelet-health"},
		"Talos":                       {id: "talos", check: "kubelet-health"},
		"runtime of kubeadm":          {id: "kubeadm", check: "runtime-health", unit: "containerd.service"},
		"runtime of kubeadm, CRI-O":   {id: "kubeadm", check: "runtime-health", socket: "/run/crio/crio.sock", unit: "crio.service"},
		"runtime of K3s":              {id: "k3s", check: "runtime-health", socket: "/run/k3s/containerd/containerd.sock"},
		"runtime of K3s, named":       {id: "k3s", check: "runtime-health", units: Units{Runtime: "k3s.service"}, unit: "k3s.service"},
		"runtime of MicroK8s":         {id: "microk8s", check: "runtime-health", unit: "snap.microk8s.daemon-containerd.service"},
		"runtime of Canonical's snap": {id: "k8s-snap", check: "runtime-health", unit: "snap.k8s.containerd.service"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newUnitNode(t)
			n.tools.Host.Node.ID = test.id
			n.tools.Host.Paths.CRISocket = cmp.Or(test.socket, "/run/containerd/containerd.sock")
			n.tools.Settings.Units = test.units
			job, err := examineUnit(t.Context(), n.tools, finding.Finding{Check: test.check})
			if got := job.Identity["unit"]; got != test.unit || (err == nil) != (test.unit != "") {
				t.Errorf("%q, %v; want %q", got, err, test.unit)
			}
		})
	}
}

// A restart is planned only if it ends the daemon alone.
func TestRestartUnitLooks(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(n *unitNode)
		refused string // empty: planned
	}{
		"it runs alone":                   {func(*unitNode) {}, ""},
		"it has failed":                   {func(n *unitNode) { n.service.Active, n.service.MainPID = "failed", 0 }, ""},
		"beside shims":                    {func(n *unitNode) { n.process(11, "containerd-shim", "/dev/null") }, ""},
		"beside a process that has ended": {func(n *unitNode) { n.service.Processes = append(n.service.Processes, 99) }, ""},
		"control-group": {func(n *unitNode) {
			n.service.KillMode = "control-group"
			n.process(11, "containerd-shim", "/dev/null")
			n.process(12, "conmon", "/dev/null")
			n.process(13, "ceph-fuse", "/dev/fuse")
		}, "restart would end 2 containers: containerd.service has KillMode=control-group, and besides its main process 3 " +
			"more in its cgroup, of which 1 serve FUSE"},
		"mixed":                {func(n *unitNode) { n.service.KillMode = "mixed" }, "restart would end 0 containers"},
		"none":                 {func(n *unitNode) { n.service.KillMode = "none" }, "beside the old one"},
		"a mode of the future": {func(n *unitNode) { n.service.KillMode = "other" }, "restart would end 0 containers"},
		"the main process is a shim": {func(n *unitNode) {
			n.process(11, "conmon", "/dev/null")
			n.service.MainPID = 11
		}, "the main process 11 of containerd.service is a shim"},
		"the main process serves FUSE": {func(n *unitNode) {
			n.process(11, "containerd", "/dev/fuse")
			n.service.MainPID = 11
		}, "serves a FUSE filesystem"},
		"stopped":      {func(n *unitNode) { n.service.Active, n.service.Sub = "inactive", "dead" }, "is inactive (dead)"},
		"activating":   {func(n *unitNode) { n.service.Active, n.service.Sub = "activating", "start" }, "is activating (start)"},
		"auto-restart": {func(n *unitNode) { n.service.Active, n.service.Sub = "failed", "auto-restart-queued" }, "(auto-re"},
		"a job":        {func(n *unitNode) { n.service.Job = true }, "systemd has a job"},
		"young":        {func(n *unitNode) { n.service.Age = time.Minute }, "1m0s ago, less than 5m0s"},
		"masked":       {func(n *unitNode) { n.service.Load = "masked" }, "is masked"},
		"not by hand":  {func(n *unitNode) { n.service.ManualAllowed = false }, "systemd refuses to start or stop"},
		"ExecStop":     {func(n *unitNode) { n.service.StopRuns = true }, "runs a program when it is stopped"},
		"dependents":   {func(n *unitNode) { n.service.Dependents = []string{"kubelet.service"} }, "would stop or restart kubelet.service"},
		"a runtime directory": {func(n *unitNode) { n.service.Changes = []string{"RuntimeDirectory=containerd without"} },
			"may change more than its processes: RuntimeDirectory=containerd without"},
		"a reboot":        {func(n *unitNode) { n.service.Changes = []string{"FailureAction=reboot", "x"} }, "FailureAction=reboot; x"},
		"ExecStartPre":    {func(n *unitNode) { n.service.StartRuns = []string{"/sbin/modprobe (ExecStartPre=)"} }, ""},
		"another runtime": {func(n *unitNode) { n.tools.Host.Paths.CRISocket = "/run/cri-dockerd.sock" }, "cannot tell which unit it is"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newUnitNode(t)
			test.change(n)
			job, err := examineUnit(t.Context(), n.tools, finding.Finding{Check: "runtime-health"})
			if _, refused := err.(mutate.Refusal); refused != (test.refused != "") || //nolint:errorlint // never wrapped
				err != nil && !strings.Contains(err.Error(), test.refused) {
				t.Errorf("%v, want %q", err, test.refused)
			}
			if err == nil && (!strings.HasPrefix(job.Does, "restart containerd.service") ||
				strings.Contains(job.Does, "it also runs /sbin/modprobe (ExecStartPre=)") != (len(n.service.StartRuns) > 0)) {
				t.Errorf("%+v", job)
			}
		})
	}
	n := newUnitNode(t)
	n.err = errOutage
	if _, err := examineUnit(t.Context(), n.tools, finding.Finding{Check: "kubelet-health"}); err == nil {
		t.Error("systemd does not answer, and a restart is planned")
	}
}

// A setting that the configuration does not name is not restored, whoever else wants it.
func TestNamedByTheConfiguration(t *testing.T) {
	n := newUnitNode(t)
	n.tools.Settings.Sysctls = map[string]string{"vm.swappiness": "10"}
	n.tools.Settings.SysctlFile = checkkit.SysctlFile
	n.tools.Settings.Modules = []string{"br-netfilter"}
	file := n.tools.Host.Files.Path("/proc/sys/vm/swappiness")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("60\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	look := func(a Action, subject string) string {
		job, err := a.Examine(t.Context(), n.tools, finding.Finding{Subject: finding.Subject{Name: subject}})
		return fmt.Sprint(job.Does, err)
	}
	for _, test := range []struct {
		action        Action
		subject, want string
	}{
		{restoreSysctl(), "vm.swappiness", "set vm.swappiness from 60 to 10<nil>"},
		{restoreSysctl(), "net.ipv4.ip_forward", "refused: the configuration does not name net.ipv4.ip_forward"},
		{loadModule(), "br_netfilter", "load kernel module br_netfilter (modprobe@br_netfilter.service)<nil>"},
		{loadModule(), "overlay", "refused: the configuration does not name overlay"},
	} {
		if got := look(test.action, test.subject); got != test.want {
			t.Errorf("%s %s: %q, want %q", test.action.Name, test.subject, got, test.want)
		}
	}
}

func TestResetFailedLooks(t *testing.T) {
	n := newUnitNode(t)
	n.tools.Host.Systemd.Units = hosttest.Answer(systemd.Units{Failed: []systemd.Unit{
		{Name: "run-1.mount", Transient: true}, {Name: "broken.service"}}}, nil)
	for unit, want := range map[string]string{"run-1.mount": "<nil>", "broken.service": "is not transient",
		"gone.scope": "has not failed"} {
		_, err := resetFailedUnits().Examine(t.Context(), n.tools, finding.Finding{Subject: finding.Subject{Name: unit}})
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: %v", unit, err)
		}
	}
}

// A fault outside every action's scope is neither planned nor refused.
func TestOfItsMatter(t *testing.T) {
	s := Defaults()
	s.Sysctls, s.Modules = map[string]string{"vm.swappiness": "10"}, []string{"br-netfilter"}
	believed := func(check, reason, subject, transient string) *finding.Believed {
		return &finding.Believed{ID: subject, Raised: hosttest.Now(), Finding: finding.Finding{Check: check, Reason: reason,
			Subject: finding.Subject{Name: subject}, Facts: map[string]string{"transient": transient}}}
	}
	state := finding.State{"x": {Subjects: map[string]*finding.Believed{
		"1": believed("sysctls", "SysctlDrift", "vm.swappiness", ""), "2": believed("sysctls", "SysctlDrift", "other", ""),
		"3": believed("kernel-modules", "KernelModuleMissing", "br_netfilter", ""),
		"4": believed("kernel-modules", "KernelModuleMissing", "other", ""),
		"5": believed("systemd-units", "UnitFailed", "run-1.scope", "true"),
		"6": believed("systemd-units", "UnitFailed", "other", ""), "7": believed("loopback", "Other", "other", ""),
	}}}
	var planned []string
	for _, step := range plan(Actions(), state, nil, s, hosttest.Now()) {
		planned = append(planned, step.Subject.Name)
	}
	if !slices.Equal(planned, []string{"vm.swappiness", "br_netfilter", "run-1.scope"}) {
		t.Errorf("%q", planned)
	}
}

// The documentation is generated from the data of actions, and configurations name them.
func TestActions(t *testing.T) {
	names := []Name{}
	for _, a := range Actions() {
		names = append(names, a.Name)
		if a.Summary == "" || len(a.Answers) == 0 || len(a.Needs) == 0 || len(a.Does) == 0 || len(a.Never) == 0 || a.Examine == nil {
			t.Errorf("%s is not described", a.Name)
		}
		want := "dry-run"
		if a.Disrupts {
			want = "off"
		}
		if got := Defaults().ModeOf(a); string(got) != want {
			t.Errorf("%s is %s in a new installation, want %s", a.Name, got, want)
		}
	}
	if !slices.Equal(names, []Name{"restore-loopback", "restore-sysctl", "load-module", "reset-failed-units", "free-disk-space",
		"restart-unit", "reregister-csi-driver", "restart-csi-driver", "restart-daemonset-container"}) {
		t.Errorf("%q: names never change", names)
	}
	wrong := Defaults()
	wrong.Actions["reboot"], wrong.Actions["restart-unit"] = "on", "yes"
	wrong.FleetBudget, wrong.StopAfter, wrong.Hold = "many", 0, 2*time.Hour
	wrong.Windows = []Window{{From: "x", To: "y"}}
	wrong.DiskSpace = DiskSpace{FreePercent: 99, FreeInodePercent: math.NaN()}
	mistakes, _ := errors.AsType[setting.Mistakes](wrong.Validate())
	for _, key := range []string{"actions.reboot", "actions.restart-unit", "fleetBudget", "stopAfter", "hold", "windows.0",
		"diskSpace.freePercent", "diskSpace.freeInodePercent", "diskSpace.imageAge", "diskSpace.journalFloorBytes",
		"diskSpace.coreDumpAge"} {
		if mistakes[key] == "" {
			t.Errorf("%s: no mistake; %v", key, mistakes)
		}
	}
	if err := Defaults().Validate(); err != nil {
		t.Error(err)
	}
}
