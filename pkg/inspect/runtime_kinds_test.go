package inspect

import (
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	tasks "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/google/go-cmp/cmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	hostcri "github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

// runtimeNode is a node with a real containerd, which can be made to forget.
type runtimeNode struct {
	*node
	ctd *mutatetest.Containerd
	// IDs that CRI no longer lists, and those that containerd does not either
	unlisted, forgotten map[string]bool
}

func newRuntimeNode(t *testing.T) *runtimeNode {
	t.Helper()
	n := &runtimeNode{ctd: mutatetest.StartContainerd(t), unlisted: map[string]bool{}, forgotten: map[string]bool{}}
	n.node = newNode(t)
	runtime, closer, err := hostcri.NewRuntime(n.ctd.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closer.Close() })
	below, belowCloser, err := hostcri.NewContainerd(n.ctd.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { belowCloser.Close() })
	h := n.host
	h.Paths.CRISocket, h.Paths.ContainerdSocket = n.ctd.Socket, n.ctd.Socket
	h.Paths.ContainerdState, h.Paths.ContainerdRoot = filepath.Join(n.ctd.Dir, "state"), filepath.Join(n.ctd.Dir, "root")
	h.Runtime.Sandboxes = without(runtime.Sandboxes, (*cri.PodSandbox).GetId, n.unlisted, n.forgotten)
	h.Runtime.Containers = without(runtime.Containers, (*cri.Container).GetId, n.unlisted, n.forgotten)
	h.Containerd = below
	h.Containerd.Containers = without(below.Containers, func(c containers.Container) string { return c.ID }, n.forgotten)
	h.Containerd.Leases = without(below.Leases, func(l leases.Lease) string { return l.ID }, n.forgotten)
	return n
}

// without leaves out what is forgotten.
func without[T any](list func(context.Context) ([]T, error), id func(T) string,
	forgotten ...map[string]bool) func(context.Context) ([]T, error) {
	return func(ctx context.Context) ([]T, error) {
		all, err := list(ctx)
		return slices.DeleteFunc(all, func(one T) bool {
			return slices.ContainsFunc(forgotten, func(f map[string]bool) bool { return f[id(one)] })
		}), err
	}
}

// podCgroup makes the cgroup of a pod and returns its path.
func (n *runtimeNode) podCgroup(uid string) string {
	parent := n.host.Paths.CgroupRoot + "/kubepods/besteffort/pod" + uid
	n.cgroups(parent)
	return parent
}

// realSandbox runs a sandbox of the real containerd in the host's network and returns its ID.
func (n *runtimeNode) realSandbox(uid string) string {
	n.t.Helper()
	return n.ctd.Sandbox(uid, n.podCgroup(uid), false).GetId()
}

// run starts a container with ctr, which CRI never lists.
func (n *runtimeNode) run(namespace, id, cgroup string, labels ...string) {
	n.t.Helper()
	ctr := func(args ...string) error {
		out, err := exec.Command("ctr", append([]string{"-a", n.ctd.Socket, "-n", namespace}, args...)...).CombinedOutput()
		if err != nil {
			n.t.Logf("ctr -n %s %q: %v: %s", namespace, args, err, out)
		}
		return err
	}
	if namespace != hostcri.Namespace && ctr("image", "import", filepath.Join(n.ctd.Dir, "image.tar")) != nil {
		n.t.FailNow()
	}
	run := []string{"run", "-d", "--null-io", "--runc-root", filepath.Join(n.ctd.Dir, "runc"), "--cgroup", cgroup}
	for _, label := range labels {
		run = append(run, "--label", label)
	}
	n.t.Cleanup(func() { _ = ctr("task", "rm", "-f", id) })
	if ctr(append(run, mutatetest.Image, id)...) != nil {
		n.t.FailNow()
	}
}

// podLabels are those that the CRI plugin puts on a container of a pod.
func podLabels(uid string) []string {
	return []string{kindLabel + "=container", uidLabel + "=" + uid, namespaceLabel + "=default", nameLabel + "=p"}
}

// of returns the verdicts of a report on objects of a kind whose ID contains one of the given IDs, by the IDs' names.
func of(report Report, kind Kind, ids map[string]string) map[string]Verdict {
	found := map[string]Verdict{}
	for _, o := range report.Objects {
		for name, id := range ids {
			if o.Kind == kind && strings.Contains(o.ID, id) {
				found[name] = o.Verdict
			}
		}
	}
	return found
}

// one returns the object of a kind whose ID contains id.
func one(t *testing.T, report Report, kind Kind, id string) Assessment {
	t.Helper()
	for _, o := range report.Objects {
		if o.Kind == kind && strings.Contains(o.ID, id) {
			return o
		}
	}
	t.Fatalf("no %s with %s", kind, id)
	return Assessment{}
}

// A container that CRI made and lost is reported with its pod once that is proven to be gone. Those of a living pod, of
// one that is just being created, of another namespace, or made by hand are not.
func TestContainerdContainers(t *testing.T) {
	n := newRuntimeNode(t)
	ids := map[string]string{"lost": mutatetest.Hex(t, 64), "starting": mutatetest.Hex(t, 64),
		"moby": mutatetest.Hex(t, 64), "mine": "mine", "listed": n.realSandbox(living)}
	n.add(other, "starting")
	n.run(hostcri.Namespace, ids["lost"], n.podCgroup(dead)+"/"+ids["lost"], podLabels(dead)...)
	n.run(hostcri.Namespace, ids["starting"], n.podCgroup(other)+"/"+ids["starting"], podLabels(other)...)
	n.run("moby", ids["moby"], n.host.Paths.CgroupRoot+"/moby", podLabels(dead)...)
	n.run(hostcri.Namespace, ids["mine"], n.host.Paths.CgroupRoot+"/mine")
	i := n.inspector()
	report, history := passes(t, n.node, i, nil, 3, 4*time.Minute)
	want := map[string]Verdict{"lost": Candidate, "starting": Live, "mine": Foreign}
	if diff := cmp.Diff(want, of(report, ContainerdContainer, ids)); diff != "" {
		t.Error("before the grace: ", diff, whys(report, dead))
	}
	report, _ = passes(t, n.node, i, history, 1, 4*time.Minute)
	want["lost"] = Leftover
	if diff := cmp.Diff(want, of(report, ContainerdContainer, ids)); diff != "" {
		t.Error(diff, whys(report, dead))
	}
	if o := one(t, report, ContainerdContainer, ids["lost"]); o.Pod != (Pod{dead, "default", "p"}) ||
		o.Facts["kind"] != "container" || o.Witnesses[Runtime] != Denies {
		t.Errorf("%+v", o)
	}
}

// A container record of no pod at all is reported as unowned, also while containerd has it; with CRI unheard, nothing
// is said.
func TestContainerdContainersWithoutAPod(t *testing.T) {
	n := newNode(t)
	n.records = []containers.Container{{ID: deadSandbox, Labels: map[string]string{kindLabel: "sandbox"}}}
	report, _ := passes(t, n, n.inspector(), nil, 4, 4*time.Minute)
	if got := one(t, report, ContainerdContainer, deadSandbox); got.Verdict != Unowned {
		t.Errorf("%s: %s", got.Verdict, got.Why)
	}
	n.runtimeErr = context.DeadlineExceeded
	report, _ = n.inspector().Pass(t.Context(), nil)
	if got := verdicts(report)[ContainerdContainer]; got != nil {
		t.Errorf("without CRI: %v", got)
	}
	n.host.Containerd = host.Containerd{}
	if got, err := listContainerdContainers(t.Context(), NewScan(t.Context(), n.host)); got != nil || err != nil {
		t.Errorf("another runtime: %v, %v", got, err)
	}
}

// Whatever is left of a sandbox that the runtime and containerd have lost is found, with its pod and, where it is busy,
// with its holder. The same things of a living pod, of one that is just being created, of another namespace, and of a
// container that was made by hand are not reported.
func TestWhatALostSandboxLeaves(t *testing.T) {
	n := newRuntimeNode(t)
	n.add(other, "starting")
	ids := map[string]string{"lost": n.realSandbox(dead), "living": n.realSandbox(living),
		"starting": n.realSandbox(other), "moby": mutatetest.Hex(t, 64), "mine": mutatetest.Hex(t, 64)}
	n.run("moby", ids["moby"], n.host.Paths.CgroupRoot+"/moby", podLabels(dead)...)
	n.run(hostcri.Namespace, ids["mine"], n.host.Paths.CgroupRoot+"/mine")
	n.unlisted[ids["starting"]], n.forgotten[ids["lost"]] = true, true
	bundle := filepath.Join(n.ctd.Dir, "state/io.containerd.runtime.v2.task/k8s.io", ids["lost"])
	holder := exec.Command("sleep", "600")
	holder.Dir = filepath.Join(bundle, "rootfs")
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = holder.Process.Kill(); _ = holder.Wait() })
	i := n.inspector()
	report, history := passes(t, n.node, i, nil, 3, 4*time.Minute)
	check := func(lost Verdict) {
		t.Helper()
		for _, kind := range []Kind{Task, Shim, Rootfs, Snapshot, SandboxDirectory} {
			want := map[string]Verdict{"lost": lost, "living": Live, "starting": Live, "mine": Foreign}
			if kind == SandboxDirectory {
				delete(want, "mine")
			}
			if diff := cmp.Diff(want, of(report, kind, ids)); diff != "" {
				t.Error(kind, diff, whys(report, dead))
			}
		}
	}
	check(Candidate)
	report, history = passes(t, n.node, i, history, 1, 4*time.Minute)
	check(Leftover)
	for kind, fact := range map[Kind]string{Task: "state", Shim: "children", Rootfs: "type", Snapshot: "snapshotter"} {
		o := one(t, report, kind, ids["lost"])
		want := map[Kind]string{Task: "RUNNING", Shim: "1", Rootfs: "overlay", Snapshot: "overlayfs"}[kind]
		if o.Pod.UID != dead || o.Facts[fact] != want {
			t.Errorf("%s: pod %s, %v", kind, o.Pod.UID, o.Facts)
		}
	}
	if held := one(t, report, Rootfs, ids["lost"]).Holders; !slices.ContainsFunc(held, func(h Holder) bool {
		return h.PID == holder.Process.Pid && h.How == "cwd"
	}) {
		t.Errorf("holders of the root filesystem: %+v", held)
	}
	delete(n.forgotten, ids["lost"])  // containerd finds it again
	n.forgotten[ids["living"]] = true // and loses this one, whose process is in a living pod's cgroup
	report, _ = passes(t, n.node, i, history, 1, 4*time.Minute)
	check(Candidate)
}

// A bundle that containerd began to remove stays for ever; so may the shm of a sandbox.
func TestHiddenBundle(t *testing.T) {
	n := newNode(t)
	bundles := filepath.Join(n.host.Paths.ContainerdState, "io.containerd.runtime.v2.task/k8s.io")
	rootfs := n.mkdir(bundles, "."+deadSandbox, "rootfs")
	n.mount("tmpfs", rootfs, "tmpfs", 0)
	n.mkdir(bundles, "mine")
	shm := n.mkdir(n.host.Paths.ContainerdState, "io.containerd.grpc.v1.cri/sandboxes", deadSandbox, "shm")
	n.mount("shm", shm, "tmpfs", 0)
	for _, dir := range n.cgroups(n.host.Paths.CgroupRoot + "/kubepods/burstable/pod" + dead + "/" + deadSandbox) {
		t.Log(dir) // names the pod
	}
	report, _ := passes(t, n, n.inspector(), nil, 4, 4*time.Minute)
	hidden, mine := one(t, report, Rootfs, deadSandbox), one(t, report, Rootfs, "mine")
	if hidden.Verdict != Leftover || hidden.Pod.UID != dead || hidden.Facts["mounts"] != "1" ||
		hidden.Facts["state"] == "" || mine.Verdict != Foreign {
		t.Errorf("%+v\n%+v", hidden, mine)
	}
	if o := one(t, report, SandboxDirectory, deadSandbox); o.Verdict != Leftover || o.Facts["shmMounts"] != "1" {
		t.Errorf("%+v", o)
	}
}

// A shim is a living pod's if a process of that pod is below it, whatever the runtime knows; and one of another
// containerd is foreign.
func TestShimsOfOthers(t *testing.T) {
	n := newNode(t)
	n.shim(deadSandbox) // without the address of our containerd
	report, _ := passes(t, n, n.inspector(), nil, 4, 4*time.Minute)
	if o := one(t, report, Shim, deadSandbox); o.Verdict != Foreign {
		t.Errorf("%s: %s", o.Verdict, o.Why)
	}
}

// An ID that two pods claim belongs to neither, and what nobody names is unowned.
func TestOwnersOfIDs(t *testing.T) {
	n := newNode(t)
	n.records = []containers.Container{{ID: sandbox, Labels: map[string]string{kindLabel: "sandbox", uidLabel: living}}}
	n.tasks = []*tasks.Process{{ID: sandbox}, {ID: newSandbox}, {ID: deadSandbox, Status: tasks.Status_STOPPED}}
	bundles := filepath.Join(n.host.Paths.ContainerdState, "io.containerd.runtime.v2.task/k8s.io")
	n.cgroups(n.host.Paths.CgroupRoot + "/kubepods/burstable/pod" + other + "/" + sandbox)
	n.cgroups(n.host.Paths.CgroupRoot + "/kubepods/burstable/pod" + dead + "/" + deadSandbox)
	report, _ := passes(t, n, n.inspector(), nil, 4, 4*time.Minute)
	if got := verdicts(report)[Task]; got != nil {
		t.Errorf("without a bundle, containerd is not asked for tasks: %v", got)
	}
	n.mkdir(bundles, deadSandbox)
	report, _ = passes(t, n, n.inspector(), nil, 4, 4*time.Minute)
	for id, want := range map[string]Verdict{sandbox: Foreign, newSandbox: Unowned, deadSandbox: Leftover} {
		if o := one(t, report, Task, id); o.Verdict != want {
			t.Errorf("task %.8s: %s: %s", id, o.Verdict, o.Why)
		}
	}
}

// What shows only an ID is no leftover while CRI has it as a sandbox or a container, or containerd has it at all; a
// container of containerd's is one although containerd has it.
func TestIDsThatTheRuntimeKnows(t *testing.T) {
	for name, know := range map[string]func(*Inventory){
		"nobody": func(*Inventory) {},
		"CRI, as a sandbox": func(t *Inventory) {
			t.Runtime.Sandboxes[sandbox] = SandboxFact{ID: sandbox, State: "READY"}
		},
		"CRI, as a container": func(t *Inventory) { t.Runtime.Containers[sandbox] = newSandbox },
		"containerd":          func(t *Inventory) { t.Containerd.Known[sandbox] = "container" },
	} {
		for _, kind := range []Kind{ContainerdContainer, Task, Shim, Rootfs, Snapshot} {
			o := Object{Kind: kind, ID: "x", Pod: Pod{UID: dead}, ContainerID: sandbox, Identity: Identity{"inode": "7"}}
			inventory := healthy()
			know(&inventory)
			report, _ := Evaluate([]Object{o}, inventory, seenLong(o), settings(), hour)
			want := Candidate
			if name == "nobody" || name == "containerd" && kind == ContainerdContainer {
				want = Leftover
			}
			if got := report.Objects[0]; got.Verdict != want {
				t.Errorf("%s, known to %s: %s: %s", kind, name, got.Verdict, got.Why)
			}
		}
	}
}

// A candidate that is only reported does not keep the agent awake for ever.
func TestLastingCandidateIsQuiet(t *testing.T) {
	o := Assessment{Object: Object{Kind: Task}, Verdict: Candidate, FirstSeen: at(time.Minute)}
	next := History{"task/x": {}}
	for age, want := range map[time.Duration]bool{30 * time.Minute: false, 2 * time.Hour: true} {
		if got := quiet(Report{At: at(age), Objects: []Assessment{o}}, next); got != want {
			t.Errorf("after %s: %t", age, got)
		}
	}
	o.Kind = Mount
	if quiet(Report{At: at(2 * time.Hour), Objects: []Assessment{o}}, next) {
		t.Error("a release waits for the mount")
	}
}
