package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/kube"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/detect/kubernetes/csiregistration"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate"
	"github.com/nodeagent/nodeagent/pkg/remediate/repair"
	"github.com/nodeagent/nodeagent/test/need"
)

// csiPodManifest is a CSI driver's pod as drivers have it: the driver and its registrar are two containers of one pod
// of a DaemonSet. The registrar comes up with %[4]s.
const csiPodManifest = `{"apiVersion":"apps/v1","kind":"DaemonSet","metadata":{"name":%[1]q,"namespace":"default"},
"spec":{"selector":{"matchLabels":{"app":%[1]q}},"template":{"metadata":{"labels":{"app":%[1]q}},
"spec":{"terminationGracePeriodSeconds":1,"tolerations":[{"operator":"Exists"}],
"containers":[
 {"name":"driver","image":"localhost/busybox:1","imagePullPolicy":"Never","volumeMounts":[{"name":"bin","mountPath":"/opt/bin"},
  {"name":"kubelet","mountPath":%[3]q}],"command":["/opt/bin/fakecsi","-role","driver","-name",%[2]q,"-kubelet-root",%[3]q,
  "-node-id","lab-node-id"]},
 {"name":"registrar","image":"localhost/busybox:1","imagePullPolicy":"Never","volumeMounts":[{"name":"bin","mountPath":"/opt/bin"},
  {"name":"registry","mountPath":"%[3]s/plugins_registry"},{"name":"plugins","mountPath":"%[3]s/plugins"}],
  "command":["sh","-c",%[4]q,"--kubelet-registration-path=%[3]s/plugins/%[2]s/csi.sock"]}],
"volumes":[{"name":"bin","hostPath":{"path":%[5]q}},{"name":"kubelet","hostPath":{"path":%[3]q}},
 {"name":"registry","hostPath":{"path":"%[3]s/plugins_registry"}},{"name":"plugins","hostPath":{"path":"%[3]s/plugins"}}]}}}}`

// repairLab is a lab with a CSI driver's pod and a runner of repairs on what the check of registrations believes.
type repairLab struct {
	*csiLab
	runner   *repair.Runner
	stateDir string
}

// openRepairLab runs a driver whose registrar comes up with a script, and waits until its pod runs.
func openRepairLab(t *testing.T, name, script string, actions ...repair.Name) *repairLab {
	t.Helper()
	c := openCSILab(t)
	c.name = name + ".example.com"
	binary, err := buildDriver()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(c.lab.Dir, "csi-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	data, err := os.ReadFile(binary)
	for _, as := range []string{"fakecsi", "csi-node-driver-registrar"} {
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, as), data, 0o755)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	root := c.lab.Paths.KubeletRoot
	script = strings.NewReplacer("REGISTRAR", "exec /opt/bin/csi-node-driver-registrar -role registrar -name "+c.name+
		" -kubelet-root "+root).Replace(script)
	if err := c.lab.KubectlApply(t.Context(), fmt.Sprintf(csiPodManifest, name, c.name, root, script, dir)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if out, err := c.lab.Kubectl(context.WithoutCancel(t.Context()), "delete", "daemonset", "-n", "default", name,
			"--ignore-not-found", "--timeout=90s"); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	settings := csiregistration.DefaultSettings()
	settings.Drivers, settings.Timeout, settings.Reread, settings.StartGrace = []string{c.name}, 2*time.Second,
		15*time.Second, time.Second
	c.check = csiregistration.New(settings, nil)
	r := &repairLab{csiLab: c, stateDir: t.TempDir()}
	r.open(actions)
	return r
}

// open makes the runner, on the clients of this lab.
func (r *repairLab) open(actions []repair.Name) {
	t, l := r.t, r.lab
	t.Helper()
	paths := r.host.Paths
	paths.CRISocket, paths.CgroupRoot, paths.KubeletElsewhere = l.Paths.CRISocket, l.Paths.CgroupRoot, true
	paths.KubeletHealthz = "http://127.0.0.1:" + strconv.Itoa(l.KubeletHealthPort()) + "/healthz"
	r.host.Paths = paths
	r.host.Kubelet = kube.NewKubelet(kube.Config{Node: l.NodeName, Kubeconfig: l.Paths.AdminKubeconfig}, host.Files{}, paths)
	runtime, closer, err := cri.NewRuntime(paths.CRISocket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closer.Close() })
	r.host.Runtime = runtime
	mutator, err := mutate.New(r.host, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mutator.Close() })
	settings := repair.Defaults()
	settings.FleetBudget, settings.MinAge, settings.UnitAge, settings.VerifyWithin = repair.None, time.Second, time.Second,
		time.Second
	settings.Hold, settings.StopAfter, settings.RetryAfter = 20*time.Second, 100, time.Second
	for _, name := range actions {
		settings.Actions[name] = remediate.On
	}
	releases := remediate.Defaults()
	releases.KillSwitch, releases.Lock = filepath.Join(r.stateDir, "stop"), filepath.Join(r.stateDir, "release.lock")
	r.runner, err = repair.New(repair.Options{Settings: settings, Releases: releases, Host: r.host, Mutator: mutator,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), StateDir: r.stateDir,
		Observe: func(ctx context.Context, check string) (finding.Observation, error) {
			found, err := r.check.Run(ctx, r.host)
			return finding.Observation{Check: check, At: r.host.Clock(), Findings: found, Err: err}, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
}

// believe makes the runner believe a finding, as raised a minute ago, and runs it until ended reports that it is done.
func (r *repairLab) believe(f finding.Finding, ended func(history []string) bool) {
	r.t.Helper()
	f.Check = "csi-registration"
	raised := r.host.Clock()
	raised.SinceBoot -= time.Minute
	b := &finding.Believed{Finding: f, ID: "occurrence", Raised: raised}
	ctx, cancel := context.WithTimeout(r.t.Context(), 12*time.Minute)
	done := make(chan error)
	go func() { done <- r.runner.Run(ctx) }()
	r.runner.Update(finding.State{"csi-registration": {Subjects: map[string]*finding.Believed{"s": b}}}, nil)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for !ended(r.history()) && ctx.Err() == nil {
		<-tick.C
	}
	cancel()
	if err := <-done; err != nil {
		r.t.Error(err)
	}
}

func (r *repairLab) history() []string {
	r.t.Helper()
	records, _, err := repair.ReadJournal(r.stateDir)
	if err != nil {
		r.t.Fatal(err)
	}
	return repair.History(records)
}

// restarts is how often kubelet has started the containers of the driver's pod again.
func (r *repairLab) restarts() string {
	r.t.Helper()
	out, err := r.lab.Kubectl(r.t.Context(), "get", "pods", "-n", "default", "-l", "app="+strings.TrimSuffix(r.name,
		".example.com"), "-o", `jsonpath={range .items[*].status.containerStatuses[*]}{.name}={.restartCount} {end}`)
	if err != nil {
		r.t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// A registrar that hangs is ended over CRI; the real kubelet starts it again, and it registers the driver with the real
// kubelet: healthy without a person, and the driver's own container has not been touched.
func TestRepairCSIRegistration(t *testing.T) {
	need.Flag(t, *long, "-long: a repair is verified and held for minutes")
	t.Parallel()
	r := openRepairLab(t, "csirepair", `if test -e /opt/bin/again; then REGISTRAR; fi
touch /opt/bin/again; REGISTRAR -knobs '{"hangGetInfo":true}'`, "reregister-csi-driver", "restart-csi-driver")
	f := r.await("CSIGetInfoFailed")
	r.believe(f, func(history []string) bool { return len(history) > 0 && strings.Contains(history[0], "verified") })
	t.Log(r.history(), r.runner.Status())
	r.await("")
	if h := r.history(); len(h) != 1 || !strings.Contains(h[0], "reregister-csi-driver csirepair.example.com") {
		t.Errorf("%q", h)
	}
	if got := r.restarts(); got != "driver=0 registrar=1" {
		t.Errorf("restarts: %s", got)
	}
}

// Where it does not help, the registrar is ended once, then the driver once, and then nothing more is done.
func TestRepairCSIRegistrationDoesNotHelp(t *testing.T) {
	need.Flag(t, *long, "-long: a repair is verified and held for minutes")
	t.Parallel()
	r := openRepairLab(t, "csihopeless", `REGISTRAR -knobs '{"hangGetInfo":true}'`, "reregister-csi-driver",
		"restart-csi-driver")
	f := r.await("CSIGetInfoFailed")
	var blocked []string
	r.believe(f, func(history []string) bool {
		blocked = nil
		for _, step := range r.runner.Status().Steps {
			if strings.HasPrefix(step.Blocked, "needs help") {
				blocked = append(blocked, string(step.Action))
			}
		}
		return len(blocked) == 2
	})
	t.Log(r.history(), blocked)
	if h := r.history(); len(h) != 2 || !strings.Contains(h[0], "reregister-csi-driver") ||
		!strings.Contains(h[0], "failed: the fault is still there") || !strings.Contains(h[1], "restart-csi-driver") ||
		!strings.Contains(h[1], "failed: the fault is still there") {
		t.Errorf("%q", h)
	}
	if got := r.restarts(); got != "driver=1 registrar=1" {
		t.Errorf("restarts: %s", got)
	}
}
