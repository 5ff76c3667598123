package e2e

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/lab"
	"github.com/nodeagent/nodeagent/test/need"
)

// The tests of this file run on the node of an emulated machine: cgroup v2 alone, systemd as init and for the cgroups of
// pods, containerd 2. See TestNode in test/guest.

func openSystemdNode(t *testing.T) *lab.Lab {
	t.Helper()
	need.Flag(t, *join != "", "-join: on an emulated machine with systemd")
	return openLab(t)
}

// deadPod is a pod of which the apiserver and kubelet know nothing, with what its deletion has left on the node. Its
// volume in memory is still mounted: as long as it is, kubelet touches nothing else of the pod.
type deadPod struct {
	t      *testing.T
	lab    *lab.Lab
	uid    string
	volume string
	wants  []inspect.Kind // that are to be found
}

func newDeadPod(t *testing.T, l *lab.Lab, wants ...inspect.Kind) *deadPod {
	t.Helper()
	id := randomID()
	uid := strings.Join([]string{id[:8], id[8:12], id[12:16], id[16:20], id[20:32]}, "-")
	d := &deadPod{t: t, lab: l, uid: uid, wants: append(wants, inspect.Mount, inspect.PodDirectory),
		volume: filepath.Join(l.Paths.KubeletRoot, "pods", uid, "volumes/kubernetes.io~empty-dir/v")}
	if err := errors.Join(os.MkdirAll(d.volume, 0o750), unix.Mount("tmpfs", d.volume, "tmpfs", 0, "size=1m")); err != nil {
		t.Fatal(err)
	}
	return d
}

// randomID has the form of a container's ID.
func randomID() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func (d *deadPod) slice() string {
	return "kubepods-besteffort-pod" + strings.ReplaceAll(d.uid, "-", "_") + ".slice"
}

func (d *deadPod) cgroup() string {
	return "/sys/fs/cgroup/kubepods.slice/kubepods-besteffort.slice/" + d.slice()
}

// scope runs a process in a scope as runc makes it, and returns its PID.
func (d *deadPod) scope(properties ...string) int {
	d.t.Helper()
	id := randomID()
	args := append([]string{"--quiet", "--scope", "--unit=cri-containerd-" + id + ".scope", "--slice=" + d.slice()},
		properties...)
	cmd := exec.CommandContext(d.t.Context(), "systemd-run", append(args, "sleep", "100000")...)
	cmd.Dir = "/"
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	go func() { _ = cmd.Wait() }()
	d.t.Cleanup(func() { _ = cmd.Process.Kill() })
	await(d.t, "the scope", func() error {
		pids, err := os.ReadFile(d.cgroup() + "/cri-containerd-" + id + ".scope/cgroup.procs")
		if err == nil && len(pids) == 0 {
			err = errors.New("it is empty")
		}
		return err
	})
	return cmd.Process.Pid
}

func await(t *testing.T, what string, try func() error) {
	t.Helper()
	if err := harness.WaitFor(t.Context(), 3*time.Minute, what, try); err != nil {
		t.Fatal(err)
	}
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// inspected is what "nodeagent inspect -o json" prints.
type inspected struct {
	Objects []inspect.Assessment
	Gates   []inspect.Gate
	Errors  []struct{ What, Error string }
}

// of returns the pod's objects of a kind.
func (i inspected) of(d *deadPod, kind inspect.Kind) []inspect.Assessment {
	return slices.DeleteFunc(slices.Clone(i.Objects), func(o inspect.Assessment) bool {
		return o.Kind != kind || o.Pod.UID != d.uid
	})
}

// awaitLeftovers inspects until each of the pods' objects is found and proven.
func awaitLeftovers(t *testing.T, a *harness.Agent, pods ...*deadPod) (report inspected) {
	t.Helper()
	await(t, "proof", func() error {
		report = inspected{}
		if _, err := a.JSON(t.Context(), &report, "inspect"); err != nil {
			return err
		}
		var missing []string
		for _, d := range pods {
			for _, kind := range d.wants {
				found := report.of(d, kind)
				if len(found) == 0 {
					missing = append(missing, fmt.Sprintf("no %s of %s", kind, d.uid))
				}
				for _, o := range found {
					if o.Verdict != inspect.Leftover {
						missing = append(missing, fmt.Sprintf("%s %s of %s is %s: %s", kind, o.ID, d.uid, o.Verdict, o.Why))
					}
				}
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("%s; gates %+v; errors %v", strings.Join(missing, "\n"), report.Gates, report.Errors)
		}
		return nil
	})
	return report
}

// awaitReleased cleans until nothing of the pods is found.
func awaitReleased(t *testing.T, a *harness.Agent, pods ...*deadPod) {
	t.Helper()
	var last harness.Answer
	err := harness.WaitFor(t.Context(), 5*time.Minute, "the release", func() (err error) {
		if last, err = a.CLI(t.Context(), "clean", "--yes"); err != nil {
			return err
		}
		var report inspected
		if _, err := a.JSON(t.Context(), &report, "inspect"); err != nil {
			return err
		}
		for _, d := range pods {
			for _, kind := range d.wants {
				for _, o := range report.of(d, kind) {
					err = errors.Join(err, fmt.Errorf("%s %s: %s %s", kind, o.ID, o.Verdict, o.Why))
				}
			}
			if _, missing := os.Stat(d.cgroup()); missing == nil {
				err = errors.Join(err, fmt.Errorf("%s is there", d.cgroup()))
			}
			if state, _ := exec.CommandContext(t.Context(), "systemctl", "is-active",
				d.slice()).Output(); strings.TrimSpace(string(state)) == "active" {
				err = errors.Join(err, fmt.Errorf("systemd has %s", d.slice()))
			}
		}
		return err
	})
	t.Logf("the last clean: exit code %d\n%s%s", last.Code, last.Stdout, last.Stderr)
	if err != nil {
		t.Fatal(err)
	}
}

// settings that let several pods be left over at once.
func systemdSettings() harness.Overrides {
	return harness.Overrides{"inspect": map[string]any{"massOrphaning": 100}}
}

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

// Pods of each class of quality of service run in the slices of their class, others come and go, and nothing of theirs
// is ever suspicious. The agent's checks know the node for a healthy one.
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
	kinds := map[inspect.Kind]int{}
	for _, o := range report.Objects {
		kinds[o.Kind]++
		if o.Verdict != inspect.Live && o.Verdict != inspect.Foreign {
			t.Errorf("%s %s of %+v is %s: %s", o.Kind, o.ID, o.Pod, o.Verdict, o.Why)
		}
	}
	t.Logf("%d objects: %v; errors %v", len(report.Objects), kinds, report.Errors)
	for _, kind := range []inspect.Kind{inspect.Sandbox, inspect.Container, inspect.Process, inspect.CNIAttachment,
		inspect.Netns, inspect.Link, inspect.Lease, inspect.Mount, inspect.Cgroup, inspect.PodDirectory,
		inspect.ContainerdContainer, inspect.Task, inspect.Shim, inspect.Rootfs, inspect.Snapshot, inspect.IPAMLease} {
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

// The same while pods come and go, by an inspector without patience.
func TestSystemdNoLivingPodIsALeftover(t *testing.T) {
	openSystemdNode(t)
	churnPods(t, &churn{inspectLab: openInspectLab(t, false), namespace: "nodeagent-churn", enough: 24, passes: 10})
}

// What only a node with systemd and cgroup v2 has is found and released: processes in the scopes of a pod, frozen ones
// too, cgroups that systemd has as units and such that it has not.
func TestSystemdProcessesAndCgroups(t *testing.T) {
	l := openSystemdNode(t)
	a := install(t, l, systemdSettings())
	living, foreign := newBystanders(t, l), newForeignSlices(t)

	orphan := newDeadPod(t, l, inspect.Process, inspect.Cgroup)
	orphaned := orphan.scope()

	frozen := newDeadPod(t, l, inspect.Process, inspect.Cgroup)
	frozen.scope()
	if err := os.WriteFile(frozen.cgroup()+"/cgroup.freeze", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}

	bySystemd := newDeadPod(t, l, inspect.Process, inspect.Cgroup) // frozen, and systemd knows it
	bySystemd.scope()
	command(t, "systemctl", "freeze", bySystemd.slice())

	tree := newDeadPod(t, l, inspect.Cgroup) // without units; a container has named what is below its own cgroup
	for _, below := range []string{"system.slice/cri-containerd-" + randomID() + ".scope", "init.scope"} {
		if err := os.MkdirAll(filepath.Join(tree.cgroup(), "cri-containerd-"+randomID()+".scope", below),
			0o755); err != nil {
			t.Fatal(err)
		}
	}
	unit := newDeadPod(t, l, inspect.Cgroup) // an empty slice
	command(t, "systemctl", "start", unit.slice())

	report := awaitLeftovers(t, a, orphan, frozen, bySystemd, tree, unit)
	if got := report.of(orphan, inspect.Process); len(got) != 1 || got[0].ID != strconv.Itoa(orphaned) {
		t.Errorf("processes %+v, want %d", got, orphaned)
	}
	for _, d := range []*deadPod{frozen, bySystemd} {
		for _, o := range report.of(d, inspect.Cgroup) {
			if o.Facts["frozen"] != "true" {
				t.Errorf("%s: not said to be frozen: %v", o.ID, o.Facts)
			}
		}
	}
	foreign.check(t)
	living.check(t)
	awaitReleased(t, a, orphan, frozen, bySystemd, tree, unit)
	foreign.check(t)
	living.check(t)
}

// foreignSlices are cgroups that look like those of pods, and are none of our kubelet's.
type foreignSlices struct{ scopes map[string]int }

func newForeignSlices(t *testing.T) foreignSlices {
	t.Helper()
	f := foreignSlices{scopes: map[string]int{}}
	uid := strings.ReplaceAll("11111111-2222-3333-4444-555555555555", "-", "_")
	for _, slice := range []string{"kubepods-other.slice", "nested-kubepods-besteffort-pod" + uid + ".slice",
		"system.slice"} {
		unit := "cri-containerd-" + randomID() + ".scope"
		cmd := exec.CommandContext(t.Context(), "systemd-run", "--quiet", "--scope", "--unit="+unit, "--slice="+slice,
			"sleep", "100000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
		await(t, unit, func() error {
			if state, _ := exec.CommandContext(t.Context(), "systemctl", "is-active", unit).Output(); string(state) !=
				"active\n" {
				return fmt.Errorf("it is %s", state)
			}
			return nil
		})
		f.scopes[unit] = cmd.Process.Pid
	}
	return f
}

func (f foreignSlices) check(t *testing.T) {
	t.Helper()
	for unit, pid := range f.scopes {
		cgroup, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil || !strings.HasSuffix(strings.TrimSpace(string(cgroup)), "/"+unit) {
			t.Errorf("process %d of the foreign %s was touched: %s, %v", pid, unit, cgroup, err)
		}
		if state := command(t, "systemctl", "is-active", unit); state != "active" {
			t.Errorf("the foreign %s is %s", unit, state)
		}
	}
}

// A volume of a dead pod that a process of the host works in is reported with its holder, and not unmounted below it;
// once the holder has ended it is released.
func TestSystemdHeldVolume(t *testing.T) {
	l := openSystemdNode(t)
	a := install(t, l, systemdSettings())
	d := newDeadPod(t, l)
	holder := exec.CommandContext(t.Context(), "sleep", "100000")
	holder.Dir = d.volume
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = holder.Process.Kill(), holder.Wait() })
	report := awaitLeftovers(t, a, d)
	mounts := report.of(d, inspect.Mount)
	if len(mounts) != 1 || !slices.ContainsFunc(mounts[0].Holders, func(h inspect.Holder) bool {
		return h.PID == holder.Process.Pid && h.How == "cwd"
	}) {
		t.Errorf("mounts %+v, want the holder %d", mounts, holder.Process.Pid)
	}
	answer, err := a.CLI(t.Context(), "clean", "--yes")
	t.Logf("clean with a holder: exit code %d, %v\n%s%s", answer.Code, err, answer.Stdout, answer.Stderr)
	if err := unix.Kill(holder.Process.Pid, 0); err != nil {
		t.Errorf("the holder: %v", err)
	}
	if table, _ := os.ReadFile("/proc/self/mountinfo"); !strings.Contains(string(table), d.volume) {
		t.Error("the volume was unmounted below its holder")
	}
	_, _ = holder.Process.Kill(), holder.Wait()
	awaitReleased(t, a, d)
}

// The network of a pod whose sandbox nobody knows any more: namespace, link, address and cached result are found and
// released by a CNI DEL.
func TestSystemdNetwork(t *testing.T) {
	l := openSystemdNode(t)
	a := install(t, l, systemdSettings())
	living := newBystanders(t, l)
	d := newDeadPod(t, l, inspect.CNIAttachment, inspect.Netns, inspect.Link)
	pin := filepath.Join(l.Paths.NetnsDir, "cni-"+d.uid)
	if err := errors.Join(os.MkdirAll(l.Paths.NetnsDir, 0o755), os.WriteFile(pin, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	command(t, "unshare", "--net="+pin, "true")
	files, err := filepath.Glob(filepath.Join(l.Paths.CNIConfDir, "*.conflist"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	list, err := libcni.ConfListFromFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	id := randomID()
	cni := libcni.NewCNIConfigWithCacheDir([]string{l.Paths.CNIBinDir}, l.Paths.CNICacheDir, nil)
	if _, err := cni.AddNetworkList(t.Context(), list, &libcni.RuntimeConf{ContainerID: id, NetNS: pin, IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", "dead"},
			{"K8S_POD_INFRA_CONTAINER_ID", id}, {"K8S_POD_UID", d.uid}}}); err != nil {
		t.Fatal(err)
	}
	awaitLeftovers(t, a, d)
	awaitReleased(t, a, d)
	leases, err := filepath.Glob(filepath.Join(l.Paths.CNINetworksDir, lab.Network, "*.*.*.*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, lease := range leases {
		if text, _ := os.ReadFile(lease); strings.Contains(string(text), id) {
			t.Errorf("the address %s is not given back", filepath.Base(lease))
		}
	}
	living.check(t)
}

// A container that containerd has and CRI does not: reported with all that belongs to it. Its processes are ended.
func TestSystemdGhostContainer(t *testing.T) {
	l := openSystemdNode(t)
	a := install(t, l, systemdSettings())
	living := newBystanders(t, l)
	d := newDeadPod(t, l, inspect.Process, inspect.Cgroup)
	id := randomID()
	ctr := func(args ...string) string {
		return command(t, l.Paths.Ctr, append([]string{"-a", l.Paths.ContainerdSocket, "-n", "k8s.io"}, args...)...)
	}
	ctr("run", "-d", "--runc-systemd-cgroup", "--runc-root", l.Paths.RuncRoot, "--cgroup", d.slice()+":cri-containerd:"+id,
		"--label", "io.cri-containerd.kind=container", "--label", "io.kubernetes.pod.uid="+d.uid,
		lab.BusyboxImage, id, "sleep", "100000")
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for _, args := range [][]string{{"tasks", "rm", "-f", id}, {"containers", "rm", id}} {
			out, err := exec.CommandContext(ctx, l.Paths.Ctr, append([]string{"-a", l.Paths.ContainerdSocket, "-n",
				"k8s.io"}, args...)...).CombinedOutput()
			t.Logf("%v: %v %s", args, err, out)
		}
	})
	report := awaitLeftovers(t, a, d)
	for _, kind := range []inspect.Kind{inspect.ContainerdContainer, inspect.Task, inspect.Shim, inspect.Rootfs,
		inspect.Snapshot} {
		if !slices.ContainsFunc(report.Objects, func(o inspect.Assessment) bool {
			return o.Kind == kind && o.ContainerID == id && o.Verdict != inspect.Live
		}) {
			t.Errorf("no %s of the ghost", kind)
		}
	}
	for _, o := range report.Objects {
		if o.ContainerID == id {
			t.Logf("%s %s %s %s", o.Kind, o.ID, o.Verdict, o.Why)
		}
	}
	awaitReleased(t, a, d)
	living.check(t)
}

// Units that systemd keeps of a container that is gone are reported, and left alone.
func TestSystemdUnits(t *testing.T) {
	l := openSystemdNode(t)
	a := install(t, l, nil)
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
			if o.Kind == inspect.SystemdUnit && o.ID == unit && o.Verdict != inspect.Live {
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

// While kubelet is down nothing is a leftover, and nothing is released.
func TestSystemdKubeletDown(t *testing.T) {
	l := openSystemdNode(t)
	a := install(t, l, systemdSettings())
	d := newDeadPod(t, l, inspect.Process, inspect.Cgroup)
	pid := d.scope()
	awaitLeftovers(t, a, d)
	if err := l.Stop(t.Context(), "kubelet"); err != nil {
		t.Fatal(err)
	}
	start := func() error { return l.Start(context.WithoutCancel(t.Context()), "kubelet") }
	t.Cleanup(func() { _ = start() })
	for range 3 {
		answer, err := a.CLI(t.Context(), "clean", "--yes")
		if err != nil || answer.Code == 0 {
			t.Errorf("clean: exit code %d, %v\n%s", answer.Code, err, answer.Stdout)
		}
	}
	var report inspected
	if _, err := a.JSON(t.Context(), &report, "inspect"); err != nil {
		t.Fatal(err)
	}
	for _, o := range report.Objects {
		if o.Verdict == inspect.Leftover {
			t.Errorf("%s %s is a leftover although kubelet is down: %v", o.Kind, o.ID, o.Witnesses)
		}
	}
	if i := slices.IndexFunc(report.Gates, func(g inspect.Gate) bool { return g.Name == "kubelet-heard" }); i < 0 ||
		report.Gates[i].Open {
		t.Errorf("gates %+v", report.Gates)
	}
	if err := unix.Kill(pid, 0); err != nil {
		t.Errorf("the process: %v", err)
	}
	if err := start(); err != nil {
		t.Fatal(err)
	}
	awaitReleased(t, a, d)
}
