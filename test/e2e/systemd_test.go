package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/lab"
)

// The tests of this file run on the node of an emulated machine: cgroup v2 alone, systemd as init and for the cgroups
// of pods, containerd 2. See TestNode in test/guest.

const qosManifest = `
apiVersion: v1
kind: Pod
metadata: {name: qos-%[1]s, namespace: default}
spec:
  nodeName: %[2]s
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: localhost/busybox:1, imagePullPolicy: Never, command: [sleep, "100000"], resources: %[3]s}
---
`

// Pods of each QoS class run in the slices of their class, every kind of object is seen, and none is suspicious.
func TestSystemdHealthyNode(t *testing.T) {
	l := openSystemdNode(t)
	a := install(t, l, nil)
	classes := map[string]struct{ resources, parent string }{
		"besteffort": {"{}", "kubepods.slice/kubepods-besteffort.slice"},
		"burstable":  {"{requests: {memory: 8Mi}}", "kubepods.slice/kubepods-burstable.slice"},
		"guaranteed": {"{limits: {cpu: 1, memory: 64Mi}}", "kubepods.slice"},
	}
	manifest := ""
	for class, c := range classes {
		manifest += fmt.Sprintf(qosManifest, class, l.NodeName, c.resources)
	}
	if err := l.KubectlApply(t.Context(), manifest); err != nil {
		t.Fatal(err)
	}
	for class, c := range classes {
		pod, err := l.WaitPodRunning(t.Context(), "default", "qos-"+class)
		if err != nil {
			t.Fatal(err)
		}
		dirs, err := l.PodCgroups(pod.UID)
		if err != nil || len(dirs) != 1 || filepath.Dir(dirs[0]) != "/sys/fs/cgroup/"+c.parent {
			t.Errorf("%s: cgroups %q, %v", class, dirs, err)
		}
	}
	answer, err := a.CLI(t.Context(), "check")
	t.Logf("check: exit code %d, %v\n%s%s", answer.Code, err, answer.Stdout, answer.Stderr)
	var report inspected
	if _, err := a.JSON(t.Context(), &report, "inspect"); err != nil {
		t.Fatal(err)
	}
	kinds := map[object.Kind]int{}
	for _, o := range report.Objects {
		kinds[o.Kind]++
		if o.Verdict != object.Live && o.Verdict != object.Foreign {
			t.Errorf("%s %s of %+v is %s: %s", o.Kind, o.ID, o.Pod, o.Verdict, o.Why)
		}
	}
	t.Logf("%d objects: %v; errors %v", len(report.Objects), kinds, report.Errors)
	for _, kind := range []object.Kind{object.Sandbox, object.Container, object.Process, object.CNIAttachment,
		object.Netns, object.Link, object.Lease, object.Mount, object.Cgroup, object.PodDirectory,
		object.Shim, object.Rootfs, object.Snapshot, object.IPAMLease} {
		if kinds[kind] == 0 {
			t.Errorf("no object of kind %s: is the agent blind here?", kind)
		}
	}
	for _, e := range report.Errors {
		t.Errorf("%s: %s", e.What, e.Error)
	}
	if _, err := l.Kubectl(t.Context(), "delete", "pod", "qos-besteffort", "qos-burstable", "qos-guaranteed"); err != nil {
		t.Error(err)
	}
}

// recipe creates a leftover of a kind that depends on systemd, on cgroup v2 or on containerd 2.
type recipe struct {
	wants []object.Kind // released kinds, beside the pod's volume and directory
	make  func(d *deadPod)
	check func(d *deadPod, report inspected) // checks the findings
}

func systemdRecipes() map[string]recipe {
	processes := []object.Kind{object.Process, object.Cgroup}
	return map[string]recipe{
		"a process in the scope of a container": {wants: processes, make: func(d *deadPod) { d.scope() },
			check: func(d *deadPod, report inspected) {
				if got := report.of(d, object.Process); len(got) != 1 || got[0].ID != strconv.Itoa(d.pid) {
					d.t.Errorf("processes %+v, want %d", got, d.pid)
				}
			}},
		"frozen": {wants: processes, check: frozenCgroups, make: func(d *deadPod) {
			d.scope()
			if err := os.WriteFile(d.cgroup()+"/cgroup.freeze", []byte("1"), 0); err != nil {
				d.t.Fatal(err)
			}
		}},
		"frozen, and systemd knows": {wants: processes, check: frozenCgroups, make: func(d *deadPod) {
			d.scope()
			command(d.t, "systemctl", "freeze", d.slice())
		}},
		"cgroups without units": {wants: processes[1:], make: func(d *deadPod) {
			for _, below := range []string{"system.slice", "init.scope/cri-containerd-" + randomID() + ".scope"} {
				if err := os.MkdirAll(filepath.Join(d.cgroup(), "cri-containerd-"+randomID()+".scope", below),
					0o755); err != nil {
					d.t.Fatal(err)
				}
			}
		}},
		"an empty slice": {wants: processes[1:], make: func(d *deadPod) {
			command(d.t, "systemctl", "start", d.slice())
		}},
		"a network": {wants: []object.Kind{object.CNIAttachment, object.Netns, object.Link},
			make: (*deadPod).attach},
		"a container that CRI does not know": {wants: processes, make: (*deadPod).ghost,
			check: func(d *deadPod, report inspected) {
				for _, kind := range []object.Kind{object.ContainerdContainer, object.Task, object.Shim,
					object.Rootfs} {
					if !slices.ContainsFunc(report.Objects, func(o object.Assessment) bool {
						return o.Kind == kind && o.ContainerID == d.container && o.Verdict != object.Live
					}) {
						d.t.Errorf("no %s of the ghost", kind)
					}
				}
			}},
	}
}

// frozenCgroups requires that the frozen cgroup is recognised as frozen.
func frozenCgroups(d *deadPod, report inspected) {
	for _, o := range report.of(d, object.Cgroup) {
		if o.Facts["depth"] == "0" && o.Facts["frozen"] != "true" {
			d.t.Errorf("%s: not known to be frozen: %v", o.ID, o.Facts)
		}
	}
}

// attach attaches a network namespace like containerd, without a sandbox.
func (d *deadPod) attach() {
	d.t.Helper()
	paths := d.lab.Paths
	pin := filepath.Join(paths.NetnsDir, "cni-"+d.uid)
	if err := errors.Join(os.MkdirAll(paths.NetnsDir, 0o755), os.WriteFile(pin, nil, 0o600)); err != nil {
		d.t.Fatal(err)
	}
	command(d.t, "unshare", "--net="+pin, "true")
	files, err := filepath.Glob(filepath.Join(paths.CNIConfDir, "*.conflist"))
	if err != nil || len(files) != 1 {
		d.t.Fatal(files, err)
	}
	list, err := libcni.ConfListFromFile(files[0])
	if err != nil {
		d.t.Fatal(err)
	}
	d.container = randomID()
	cni := libcni.NewCNIConfigWithCacheDir([]string{paths.CNIBinDir}, paths.CNICacheDir, nil)
	var ports map[string]any
	if d.hostPort != 0 {
		ports = map[string]any{"portMappings": []map[string]any{{"hostPort": d.hostPort, "containerPort": 80, "protocol": "tcp"}}}
	}
	if _, err := cni.AddNetworkList(d.t.Context(), list, &libcni.RuntimeConf{ContainerID: d.container, NetNS: pin,
		IfName: "eth0", CapabilityArgs: ports, Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"},
			{"K8S_POD_NAME", "dead"}, {"K8S_POD_INFRA_CONTAINER_ID", d.container}, {"K8S_POD_UID", d.uid}}}); err != nil {
		d.t.Fatal(err)
	}
}

// ghost runs a container of the pod that containerd knows and CRI does not.
func (d *deadPod) ghost() {
	d.t.Helper()
	d.container = randomID()
	ctr := func(ctx context.Context, args ...string) error {
		out, err := exec.CommandContext(ctx, d.lab.Paths.Ctr, append([]string{"-a", d.lab.Paths.ContainerdSocket, "-n",
			"k8s.io"}, args...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ctr %q: %w: %s", args, err, out)
		}
		return nil
	}
	if err := ctr(d.t.Context(), "run", "-d", "--runc-systemd-cgroup", "--runc-root", d.lab.Paths.RuncRoot,
		"--cgroup", d.slice()+":cri-containerd:"+d.container, "--label", "io.cri-containerd.kind=container", "--label",
		"io.kubernetes.pod.uid="+d.uid, lab.BusyboxImage, d.container, "sleep", "100000"); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		ctx := context.WithoutCancel(d.t.Context())
		_ = ctr(ctx, "tasks", "rm", "-f", d.container) // with its process gone, or not
		if err := ctr(ctx, "containers", "rm", d.container); err != nil {
			d.t.Log(err)
		}
	})
}

// TestSystemdLeftovers creates a leftover by each recipe, and one that a process of the host holds. All are found and
// proven, none while kubelet hangs, and those that may be released are; living objects and those that do not belong to
// our kubelet stay unchanged.
func TestSystemdLeftovers(t *testing.T) {
	testLeftovers(t, openSystemdNode(t), nil)
}

// The same with the credentials of an rpm installation, kubelet's own, with which kubelet shows the agent less.
func TestSystemdLeftoversByKubeletsCredentials(t *testing.T) {
	l := openSystemdNode(t)
	testLeftovers(t, l, map[string]any{"kubeconfig": l.Paths.KubeletKubeconfig})
}

func testLeftovers(t *testing.T, l *lab.Lab, paths map[string]any) {
	t.Helper()
	a := install(t, l, harness.Overrides{"paths": paths, "inspect": map[string]any{"massOrphaning": 100}})
	living, foreign := newBystanders(t, l), newForeignSlices(t)
	recipes, pods := systemdRecipes(), map[string]*deadPod{}
	for name, r := range recipes {
		pods[name] = newDeadPod(t, l, r.wants...)
		r.make(pods[name])
		t.Logf("%s: %s", name, pods[name].uid)
	}
	held := newDeadPod(t, l)
	holder := exec.CommandContext(t.Context(), "sleep", "100000")
	holder.Dir = held.volume
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = holder.Process.Kill(), holder.Wait() })
	dead := slices.Collect(maps.Values(pods))
	report := awaitLeftovers(t, a, append(dead, held)...)
	for name, r := range recipes {
		if r.check != nil {
			r.check(pods[name], report)
		}
	}
	if mounts := report.of(held, object.Mount); len(mounts) != 1 || !slices.ContainsFunc(mounts[0].Holders,
		func(h object.Holder) bool { return h.PID == holder.Process.Pid && h.How == "cwd" }) {
		t.Errorf("mounts %+v, want the holder %d", mounts, holder.Process.Pid)
	}
	kubeletHangs(t, l, a, pods["a process in the scope of a container"])
	awaitReleased(t, a, dead...)
	foreign.check(t)
	living.check(t)
	leases, err := filepath.Glob(filepath.Join(l.Paths.CNINetworksDir, lab.Network, "*.*.*.*"))
	if err != nil {
		t.Error(err)
	}
	for _, lease := range leases {
		if text, _ := os.ReadFile(lease); strings.Contains(string(text), pods["a network"].container) {
			t.Errorf("the address %s is not given back", filepath.Base(lease))
		}
	}

	if err := unix.Kill(holder.Process.Pid, 0); err != nil {
		t.Errorf("the holder: %v", err)
	}
	if table, _ := os.ReadFile("/proc/self/mountinfo"); !strings.Contains(string(table), held.volume) {
		t.Error("the volume was unmounted below its holder")
	}
}

// kubeletHangs requires that there is no leftover and no release while kubelet does not answer.
func kubeletHangs(t *testing.T, l *lab.Lab, a *harness.Agent, d *deadPod) {
	t.Helper()
	if err := l.Signal("kubelet", unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Signal("kubelet", unix.SIGCONT) }()
	answer, err := a.CLI(t.Context(), "clean", "--yes")
	if err != nil || answer.Code == 0 {
		t.Errorf("clean: exit code %d, %v\n%s", answer.Code, err, answer.Stdout)
	}
	var report inspected
	if _, err := a.JSON(t.Context(), &report, "inspect"); err != nil {
		t.Fatal(err)
	}
	for _, o := range report.Objects {
		if o.Verdict == object.Leftover {
			t.Errorf("%s %s is a leftover although kubelet hangs: %v", o.Kind, o.ID, o.Witnesses)
		}
	}
	if i := slices.IndexFunc(report.Gates, func(g object.Gate) bool { return g.Name == "kubelet-heard" }); i < 0 ||
		report.Gates[i].Open {
		t.Errorf("gates %+v", report.Gates)
	}
	if err := unix.Kill(d.pid, 0); err != nil {
		t.Errorf("the process: %v", err)
	}
}

// Units that systemd keeps for a removed container are reported, and left alone.
func TestSystemdUnits(t *testing.T) { testUnits(t, openSystemdNode(t), nil) }

func TestSystemdUnitsByKubeletsCredentials(t *testing.T) {
	l := openSystemdNode(t)
	testUnits(t, l, map[string]any{"kubeconfig": l.Paths.KubeletKubeconfig})
}

func testUnits(t *testing.T, l *lab.Lab, paths map[string]any) {
	t.Helper()
	a := install(t, l, harness.Overrides{"paths": paths})
	unit := "cri-containerd-" + randomID() + ".scope"
	_ = exec.CommandContext(t.Context(), "systemd-run", "--quiet", "--scope", "--unit="+unit, "-p", "RuntimeMaxSec=1",
		"sleep", "100000").Run()
	await(t, "a failed scope", func() error {
		if state, _ := exec.CommandContext(t.Context(), "systemctl", "is-failed", unit).Output(); string(state) !=
			"failed\n" {
			return fmt.Errorf("it is %s", state)
		}
		return nil
	})
	t.Cleanup(func() {
		_ = exec.CommandContext(context.WithoutCancel(t.Context()), "systemctl", "reset-failed", unit).Run()
	})
	await(t, "the unit", func() error {
		var report inspected
		if _, err := a.JSON(t.Context(), &report, "inspect"); err != nil {
			return err
		}
		for _, o := range report.Objects {
			if o.Kind == object.SystemdUnit && o.ID == unit && o.Verdict != object.Live {
				t.Logf("%s: %s", o.Verdict, o.Why)
				return nil
			}
		}
		return errors.New("not found")
	})
	if _, err := a.CLI(t.Context(), "clean", "--yes"); err != nil {
		t.Fatal(err)
	}
	if state, _ := exec.CommandContext(t.Context(), "systemctl", "is-failed", unit).Output(); string(state) !=
		"failed\n" {
		t.Errorf("the unit was touched: %s", state)
	}
}
