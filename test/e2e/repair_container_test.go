package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/hosttest/executable"
	"github.com/nodeagent/nodeagent/internal/kube"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/detect/kubernetes/csiregistration"
	"github.com/nodeagent/nodeagent/pkg/detect/kubernetes/daemonsethang"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
	"github.com/nodeagent/nodeagent/pkg/remediate/repair"
	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/need"
)

// csiPodManifest is a typical CSI driver's pod: the driver and its registrar are two containers of one pod of a
// DaemonSet. The registrar starts with %[4]s, the driver with %[6]s.
const csiPodManifest = `{"apiVersion":"apps/v1","kind":"DaemonSet","metadata":{"name":%[1]q,"namespace":"default"},
"spec":{"selector":{"matchLabels":{"app":%[1]q}},"template":{"metadata":{"labels":{"app":%[1]q}},
"spec":{"terminationGracePeriodSeconds":1,"tolerations":[{"operator":"Exists"}],
"containers":[
 {"name":"driver","image":"localhost/busybox:1","imagePullPolicy":"Never","volumeMounts":[{"name":"bin","mountPath":"/opt/bin"},
  {"name":"kubelet","mountPath":%[3]q}],"command":["sh","-c",%[6]q]},
 {"name":"registrar","image":"localhost/busybox:1","imagePullPolicy":"Never","volumeMounts":[{"name":"bin","mountPath":"/opt/bin"},
  {"name":"registry","mountPath":"%[3]s/plugins_registry"},{"name":"plugins","mountPath":"%[3]s/plugins"}],
  "command":["sh","-c",%[4]q,"--kubelet-registration-path=%[3]s/plugins/%[2]s/csi.sock"]}],
"volumes":[{"name":"bin","hostPath":{"path":%[5]q}},{"name":"kubelet","hostPath":{"path":%[3]q}},
 {"name":"registry","hostPath":{"path":"%[3]s/plugins_registry"}},{"name":"plugins","hostPath":{"path":"%[3]s/plugins"}}]}}}}`

// hold is how long a repair must last here.
const hold = 20 * time.Second

// repairLab is a lab with a DaemonSet and a runner of repairs for the findings of one check.
type repairLab struct {
	*csiLab
	app      string // the DaemonSet
	runner   *repair.Runner
	stateDir string
}

// openRepairLab runs a driver whose registrar starts with a script, and waits until its pod runs.
func openRepairLab(t *testing.T, name, registrar string, actions ...repair.Name) *repairLab {
	t.Helper()
	return openDriverLab(t, name, "DRIVER", registrar, actions...)
}

// openDriverLab does so with a script for the driver as well.
func openDriverLab(t *testing.T, name, driver, registrar string, actions ...repair.Name) *repairLab {
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
			err = executable.Write(filepath.Join(dir, as), data)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	root := c.lab.Paths.KubeletRoot
	of := " -name " + c.name + " -kubelet-root " + root
	programs := strings.NewReplacer("REGISTRAR", "exec /opt/bin/csi-node-driver-registrar -role registrar"+of,
		"DRIVER", "exec /opt/bin/fakecsi -role driver -node-id lab-node-id"+of)
	r := &repairLab{csiLab: c, app: name, stateDir: t.TempDir()}
	r.apply(fmt.Sprintf(csiPodManifest, name, c.name, root, programs.Replace(registrar), dir, programs.Replace(driver)))
	settings := csiregistration.DefaultSettings()
	settings.Drivers, settings.Timeout, settings.Reread, settings.StartGrace = []string{c.name}, 2*time.Second,
		15*time.Second, time.Second
	c.check = csiregistration.New(settings, nil)
	r.open(actions)
	return r
}

// apply creates the DaemonSet, and deletes it when the test ends.
func (r *repairLab) apply(manifest string) {
	r.t.Helper()
	if err := r.lab.KubectlApply(r.t.Context(), manifest); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if out, err := r.lab.Kubectl(context.WithoutCancel(r.t.Context()), "delete", "daemonset", "-n", "default", r.app,
			"--ignore-not-found", "--timeout=10m"); err != nil {
			r.t.Errorf("%v: %s", err, out)
		}
	})
}

// open creates the runner, with the clients of this lab.
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
	settings.Hold, settings.StopAfter, settings.RetryAfter = hold, 100, time.Second
	settings.DaemonSets = []string{"default/" + r.app}
	for _, name := range actions {
		settings.Actions[name] = release.On
	}
	releases := release.Defaults()
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

// believe makes the runner believe a finding, raised a minute ago, and runs it until ended returns true.
func (r *repairLab) believe(f finding.Finding, ended func(history []string) bool) {
	r.t.Helper()
	f.Check = r.check.ID
	raised := r.host.Clock()
	raised.SinceBoot -= time.Minute
	b := &finding.Believed{Finding: f, ID: "occurrence", Raised: raised}
	ctx, cancel := context.WithTimeout(r.t.Context(), 12*time.Minute)
	done := make(chan error)
	go func() { done <- r.runner.Run(ctx) }()
	r.runner.Update(finding.State{r.check.ID: {Subjects: map[string]*finding.Believed{"s": b}}}, nil)
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

// restarts is how often kubelet has restarted the containers of the driver's pod.
func (r *repairLab) restarts() string {
	r.t.Helper()
	out, err := r.lab.Kubectl(r.t.Context(), "get", "pods", "-n", "default", "-l", "app="+r.app, "-o", `jsonpath={range .items[*].status.containerStatuses[*]}{.name}={.restartCount} {end}`)
	if err != nil {
		r.t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// A hung registrar is ended over CRI; the real kubelet restarts it, and it registers the driver with the real kubelet:
// the node is healthy without a person, and the driver's own container is untouched.
func TestRepairCSIRegistration(t *testing.T) {
	need.Flag(t, *long, "-long: a repair is verified and held for minutes")
	t.Parallel()
	r := openRepairLab(t, "csirepair", `if test -e /opt/bin/again; then REGISTRAR; fi
touch /opt/bin/again; REGISTRAR -knobs '{"hangGetInfo":true}'`, "reregister-csi-driver", "restart-csi-driver")
	f := r.await("CSIGetInfoFailed")
	found := time.Now()
	r.believe(f, func(history []string) bool { return len(history) > 0 && strings.Contains(history[0], "verified") })
	t.Logf("repaired by reregister-csi-driver in %s", (time.Since(found) - hold).Round(100*time.Millisecond))
	r.await("")
	if h := r.history(); len(h) != 1 || !strings.Contains(h[0], "reregister-csi-driver csirepair.example.com") {
		t.Errorf("%q", h)
	}
	if got := r.restarts(); got != "driver=0 registrar=1" {
		t.Errorf("restarts: %s", got)
	}
}

// A driver reports no node to kubelet until it is restarted: the registrar's restart does not help, the driver's does.
func TestRepairCSIDriver(t *testing.T) {
	need.Flag(t, *long, "-long: a repair is verified and held for minutes")
	t.Parallel()
	r := openDriverLab(t, "csidriver", `if test -e /opt/bin/again; then DRIVER; fi
touch /opt/bin/again; DRIVER -knobs '{"nodeInfoError":"no metadata"}'`, "REGISTRAR", "reregister-csi-driver",
		"restart-csi-driver")
	f := r.await("CSIRegistrationRejected")
	r.believe(f, func(history []string) bool { return len(history) > 1 && strings.Contains(history[1], "verified") })
	r.await("")
	h := r.history()
	t.Logf("%q", h)
	if len(h) != 2 || !strings.Contains(h[0], "reregister-csi-driver csidriver.example.com") ||
		!strings.Contains(h[0], "failed: the fault is still there") || !strings.Contains(h[1], "restart-csi-driver") {
		t.Errorf("%q", h)
	}
	if got := r.restarts(); got != "driver=1 registrar=1" {
		t.Errorf("restarts: %s", got)
	}
}

// If it does not help, the registrar is ended once, then the driver once, and then the runner stops.
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

// openHangLab runs a DaemonSet with one container, and a clock of the node at 30 times the speed: the check needs 5
// minutes to believe that a container hangs.
func openHangLab(t *testing.T, name, command string) *repairLab {
	t.Helper()
	r := &repairLab{csiLab: openCSILab(t), app: name, stateDir: t.TempDir()}
	r.name = "default/" + name
	begin := host.Now()
	r.host.Clock = func() finding.Timestamp {
		now := host.Now()
		passed := 30 * now.Since(begin)
		now.SinceBoot, now.Wall = begin.SinceBoot+passed, begin.Wall.Add(passed)
		return now
	}
	r.apply(fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"DaemonSet","metadata":{"name":%[1]q,"namespace":"default"},
"spec":{"selector":{"matchLabels":{"app":%[1]q}},"template":{"metadata":{"labels":{"app":%[1]q}},
"spec":{"terminationGracePeriodSeconds":1,"tolerations":[{"operator":"Exists"}],"containers":[{"name":"main",
"image":"localhost/busybox:1","imagePullPolicy":"Never","command":["sh","-c",%[2]q]}]}}}}`, name, command))
	r.check = daemonsethang.New(daemonsethang.Settings{DaemonSets: []daemonsethang.Watched{{Name: r.name, Port: 8080}}})
	r.open([]repair.Name{"restart-daemonset-container"})
	return r
}

// pid is the main process of the DaemonSet's container.
func (r *repairLab) pid() int {
	r.t.Helper()
	out, err := r.lab.Kubectl(r.t.Context(), "get", "pods", "-n", "default", "-l", "app="+r.app, "-o",
		"jsonpath={.items[0].status.containerStatuses[0].containerID}")
	if err != nil {
		r.t.Fatal(err)
	}
	processes, err := r.host.ContainerProcesses(strings.TrimPrefix(string(out), "containerd://"))
	main, ok := host.MainProcess(processes)
	if err != nil || !ok {
		r.t.Fatalf("%s: %v", out, err)
	}
	return main.PID
}

// awaitRun waits until the DaemonSet's container runs.
func (r *repairLab) awaitRun() {
	r.t.Helper()
	if err := harness.WaitFor(r.t.Context(), "the container to run", func() error {
		if got := r.restarts(); got != "main=0" {
			return errors.New(got)
		}
		_, err := r.lab.Kubectl(r.t.Context(), "wait", "pod", "-n", "default", "-l", "app="+r.app, "--for=condition=Ready",
			"--timeout=1s")
		return err
	}); err != nil {
		r.t.Fatal(err)
	}
}

// A DaemonSet's hung process is ended over CRI, and the real kubelet restarts it.
func TestRepairDaemonSet(t *testing.T) {
	need.Flag(t, *long, "-long: a repair is verified and held for minutes")
	t.Parallel()
	r := openHangLab(t, "hangonce", "exec httpd -f -p 8080")
	r.awaitRun()
	r.await("")
	if err := syscall.Kill(r.pid(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	f := r.await("DaemonSetPodNotAnswering")
	found := time.Now()
	r.believe(f, func(history []string) bool { return len(history) > 0 && strings.Contains(history[0], "verified") })
	t.Logf("repaired by restart-daemonset-container in %s", (time.Since(found) - hold).Round(100*time.Millisecond))
	r.await("")
	if h := r.history(); len(h) != 1 || r.restarts() != "main=1" {
		t.Errorf("%q, %s", h, r.restarts())
	}
}

// A process that never answers is ended only once: after that a person must act.
func TestRepairDaemonSetDoesNotHelp(t *testing.T) {
	need.Flag(t, *long, "-long: a repair is verified and held for minutes")
	t.Parallel()
	r := openHangLab(t, "hangalways", "exec sleep 100000")
	r.awaitRun()
	f := r.await("DaemonSetPodNotAnswering")
	why := ""
	r.believe(f, func([]string) bool {
		for _, step := range r.runner.Status().Steps {
			why = step.Blocked
		}
		return strings.HasPrefix(why, "needs help")
	})
	if !strings.HasPrefix(why, "needs help: it was done once already") {
		t.Errorf("%q", why)
	}
	found := r.runner.Findings()
	if len(found) != 1 || found[0].Reason != "RepairDidNotHelp" || found[0].SuggestedAction != finding.SuggestHuman ||
		!strings.Contains(found[0].Message, "this needs a person") {
		t.Errorf("it does not ask for help: %+v", found)
	}
	if h := r.history(); len(h) != 1 || !strings.Contains(h[0], "failed: the fault is still there") ||
		r.restarts() != "main=1" {
		t.Errorf("%q, %s, %s", h, why, r.restarts())
	}
}
