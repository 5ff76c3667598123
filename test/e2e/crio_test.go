package e2e

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/lab"
	"github.com/nodeagent/nodeagent/test/need"
)

// The tests of this file run on a node whose runtime is CRI-O: see Options.CRIO of test/lab.

func openCRIONode(t *testing.T) *lab.Lab {
	t.Helper()
	need.Flag(t, *crio, "-crio: on a node whose runtime is CRI-O")
	return openLab(t)
}

// A healthy node with CRI-O: each kind of object that it has is found, belongs to its pod and is alive, and what only
// containerd has is not missed.
func TestCRIOHealthyNode(t *testing.T) {
	l := openCRIONode(t)
	a := install(t, l, nil)
	living := newBystanders(t, l)
	var report inspected
	if _, err := a.JSON(t.Context(), &report, "inspect"); err != nil {
		t.Fatal(err)
	}
	kinds := map[inspect.Kind]int{}
	containers := map[string]bool{}
	for _, o := range report.Objects {
		if o.Verdict != inspect.Live && o.Verdict != inspect.Foreign {
			t.Errorf("%s %s of %+v is %s: %s", o.Kind, o.ID, o.Pod, o.Verdict, o.Why)
		}
		if o.Pod.UID != living.pod.UID {
			continue
		}
		kinds[o.Kind]++
		if o.Kind == inspect.Container {
			containers[o.ID] = true
		}
	}
	for _, kind := range []inspect.Kind{inspect.Sandbox, inspect.Container, inspect.Process, inspect.CNIAttachment,
		inspect.Netns, inspect.Link, inspect.IPAMLease, inspect.Mount, inspect.Cgroup, inspect.PodDirectory,
		inspect.Shim, inspect.PodLogs} {
		if kinds[kind] == 0 {
			t.Errorf("no object of kind %s: is the agent blind here?", kind)
		}
	}
	for _, o := range report.Objects {
		if o.Pod.UID == living.pod.UID && o.Kind == inspect.Process && !containers[o.ContainerID] {
			t.Errorf("process %s is in no known container but %q: %v", o.ID, o.ContainerID, o.Facts)
		}
	}
	for _, e := range report.Errors {
		t.Errorf("%s: %s", e.What, e.Error)
	}
	for _, g := range report.Gates {
		if !g.Open {
			t.Errorf("gate %s is closed: %s", g.Name, g.Why)
		}
	}
	living.check(t)
}

// A pod that kubelet has lost, frozen, is found, is no leftover while CRI-O hangs, and is released through CRI-O, with
// all that CRI-O made for it. A network that CRI-O has lost is found by itself, and so is a container, which goes with its
// conmon. What lives is not touched.
func TestCRIOLeftovers(t *testing.T) {
	l := openCRIONode(t)
	a := install(t, l, harness.Overrides{"inspect": map[string]any{"massOrphaning": 100}})
	living := newBystanders(t, l)
	victim, err := harness.NewVictim(t.Context(), l, "crio-victim")
	if err != nil {
		t.Fatal(err)
	}
	ghost := newDeadPod(t, l, inspect.Process, inspect.Cgroup, inspect.Shim)
	ghost.lostByCRIO()
	network := newDeadPod(t, l, inspect.CNIAttachment, inspect.Netns, inspect.Link)
	network.attach()
	if err := errors.Join(victim.Abandon(t.Context()), victim.WaitStuck(t.Context())); err != nil {
		t.Fatal(err)
	}
	dead := &deadPod{t: t, lab: l, uid: victim.UID, wants: []inspect.Kind{inspect.Sandbox, inspect.Container,
		inspect.Process, inspect.Mount, inspect.Cgroup, inspect.PodDirectory}}
	report := awaitLeftovers(t, a, dead, ghost, network)
	if shims := report.of(ghost, inspect.Shim); len(shims) != 1 || shims[0].ContainerID != ghost.container {
		t.Errorf("shims %+v, want that of %s", shims, ghost.container)
	}
	runtimeHangs(t, l, a)
	dead.wants = append(dead.wants, inspect.CNIAttachment, inspect.Netns, inspect.Link, inspect.Shim, inspect.IPAMLease)
	awaitReleased(t, a, dead, ghost, network)
	if traces, err := victim.Traces(t.Context()); err != nil || len(traces) > 0 {
		t.Errorf("left: %q, %v", traces, err)
	}
	if err := victim.CheckCanary(); err != nil {
		t.Errorf("user data was harmed: %v", err)
	}
	if pins, err := filepath.Glob(filepath.Join(l.Dir, "run/*ns/*")); err != nil || len(pins) > 4 {
		t.Errorf("namespaces of more than one pod are mounted: %q, %v", pins, err)
	}
	living.check(t)
}

// lostByCRIO runs a container of the pod as CRI-O does, below a conmon, of which CRI-O knows nothing.
func (d *deadPod) lostByCRIO() {
	d.t.Helper()
	d.container = randomID()
	bundle := filepath.Join(d.lab.Dir, "bundle-"+d.container[:8])
	if err := os.MkdirAll(filepath.Join(bundle, "rootfs/bin"), 0o755); err != nil {
		d.t.Fatal(err)
	}
	command(d.t, "cp", "/bin/busybox", filepath.Join(bundle, "rootfs/bin/sleep"))
	command(d.t, "runc", "spec", "--bundle", bundle)
	file := filepath.Join(bundle, "config.json")
	var spec map[string]any
	data, err := os.ReadFile(file)
	if err := errors.Join(err, json.Unmarshal(data, &spec)); err != nil {
		d.t.Fatal(err)
	}
	process, linux := spec["process"].(map[string]any), spec["linux"].(map[string]any)
	process["args"], process["terminal"] = []string{"sleep", "100000"}, false
	pod := filepath.Join(d.lab.Paths.CgroupRoot, "kubepods/besteffort/pod"+d.uid)
	linux["cgroupsPath"] = filepath.Join(pod, "crio-"+d.container)
	if data, err = json.Marshal(spec); err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		d.t.Fatal(err)
	}
	runc := []string{"--root", d.lab.Paths.RuncRoot}
	in := func(name string) string { return filepath.Join(bundle, name) }
	conmon := exec.CommandContext(d.t.Context(), "conmon", "-b", bundle, "-c", d.container, "-u", d.container,
		"-n", "k8s_main_dead", "--exit-dir", filepath.Join(d.lab.Dir, "run/crio/exits"), "-l", in("log"),
		"-p", in("pidfile"), "-P", in("conmon-pidfile"), "-r", "/usr/sbin/runc", "--runtime-arg",
		strings.Join(runc, "="))
	if err := conmon.Run(); err != nil { // without pipes: what it leaves running would hold them
		d.t.Fatal(err)
	}
	await(d.t, "the lost container", func() error {
		return exec.CommandContext(d.t.Context(), "runc", append(runc, "start", d.container)...).Run()
	})
	d.t.Cleanup(func() {
		_ = exec.Command("runc", append(runc, "delete", "--force", d.container)...).Run() //nolint:noctx // it is a clean-up
	})
}

// runtimeHangs demands that nothing is a leftover while CRI-O does not answer.
func runtimeHangs(t *testing.T, l *lab.Lab, a *harness.Agent) {
	t.Helper()
	if err := l.Signal("crio", unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Signal("crio", unix.SIGCONT) }()
	var report inspected
	if _, err := a.JSON(t.Context(), &report, "inspect"); err != nil {
		t.Fatal(err)
	}
	for _, o := range report.Objects {
		if o.Verdict == inspect.Leftover {
			t.Errorf("%s %s is a leftover although CRI-O hangs: %v", o.Kind, o.ID, o.Witnesses)
		}
	}
	if !slices.ContainsFunc(report.Gates, func(g inspect.Gate) bool { return g.Name == "runtime-heard" && !g.Open }) {
		t.Errorf("gates %+v", report.Gates)
	}
}
