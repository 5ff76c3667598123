package kinds_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	tasks "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/google/go-cmp/cmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	hostcri "github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// runtimeNode is a node with a real containerd that can be made to lose objects.
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
	h := n.Host
	h.Paths.CRISocket, h.Paths.ContainerdSocket = n.ctd.Socket, n.ctd.Socket
	h.Paths.ContainerdState, h.Paths.ContainerdRoot = filepath.Join(n.ctd.Dir, "state"), filepath.Join(n.ctd.Dir,
		"root")
	h.Runtime.Sandboxes = without(runtime.Sandboxes, (*cri.PodSandbox).GetId, n.unlisted, n.forgotten)
	h.Runtime.Containers = without(runtime.Containers, (*cri.Container).GetId, n.unlisted, n.forgotten)
	h.Containerd = below
	h.Containerd.Containers = without(below.Containers, func(c containers.Container) string { return c.ID },
		n.forgotten)
	h.Containerd.Leases = without(below.Leases, func(l leases.Lease) string { return l.ID }, n.forgotten)
	return n
}

// without leaves out the forgotten objects.
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
	parent := n.Host.Paths.CgroupRoot + "/kubepods/besteffort/pod" + uid
	n.Cgroups(parent)
	return parent
}

// realSandbox runs a sandbox of the real containerd in the host's network and returns its ID.
func (n *runtimeNode) realSandbox(uid string) string {
	n.t.Helper()
	return n.ctd.Sandbox(uid, n.podCgroup(uid), false).GetId()
}

// run starts a container with ctr that CRI never lists.
func (n *runtimeNode) run(namespace, id, cgroup string, labels ...string) {
	n.t.Helper()
	ctr := func(args ...string) error {
		out, err := exec.Command("ctr", append([]string{"-a", n.ctd.Socket, "-n", namespace},
			args...)...).CombinedOutput()
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

// podLabels are the CRI plugin's labels on a container of a pod.
func podLabels(uid string) []string {
	return []string{witness.KindLabel + "=container", witness.UIDLabel + "=" + uid,
		witness.NamespaceLabel + "=default", witness.NameLabel + "=p"}
}

// A container that CRI made and lost is reported with its pod once the pod is proven to be gone. Those of a living pod,
// of one being created, of another namespace, or made by hand are not.
func TestContainerdContainers(t *testing.T) {
	n := newRuntimeNode(t)
	ids := map[string]string{"lost": mutatetest.Hex(t, 64), "starting": mutatetest.Hex(t, 64),
		"moby": mutatetest.Hex(t, 64), "mine": "mine", "listed": n.realSandbox(living)}
	n.Add(other, "starting")
	n.run(hostcri.Namespace, ids["lost"], n.podCgroup(dead)+"/"+ids["lost"], podLabels(dead)...)
	n.run(hostcri.Namespace, ids["starting"], n.podCgroup(other)+"/"+ids["starting"], podLabels(other)...)
	n.run("moby", ids["moby"], n.Host.Paths.CgroupRoot+"/moby", podLabels(dead)...)
	n.run(hostcri.Namespace, ids["mine"], n.Host.Paths.CgroupRoot+"/mine")
	i := n.inspector()
	report, history := passes(t, n.node, i, nil, 3, 4*time.Minute)
	want := map[string]object.Verdict{"lost": object.Candidate, "starting": object.Live, "mine": object.Foreign}
	if diff := cmp.Diff(want, of(report, object.ContainerdContainer, ids)); diff != "" {
		t.Error("before the grace: ", diff, inspecttest.Whys(report, dead))
	}
	report, _ = passes(t, n.node, i, history, 1, 4*time.Minute)
	want["lost"] = object.Leftover
	if diff := cmp.Diff(want, of(report, object.ContainerdContainer, ids)); diff != "" {
		t.Error(diff, inspecttest.Whys(report, dead))
	}
	if o := one(t, report, object.ContainerdContainer, ids["lost"]); o.Pod != (object.Pod{UID: dead,
		Namespace: "default", Name: "p"}) ||
		o.Facts["kind"] != "container" || o.Witnesses[object.Runtime] != object.Denies {
		t.Errorf("%+v", o)
	}
}

// A container record without any pod is reported as unowned, even while containerd has it; if CRI does not answer,
// there is no report.
func TestContainerdContainersWithoutAPod(t *testing.T) {
	n := newNode(t)
	n.Records = []containers.Container{{ID: deadSandbox, Labels: map[string]string{witness.KindLabel: "sandbox"}}}
	report, _ := passes(t, n, n.inspector(), nil, 4, 4*time.Minute)
	if got := one(t, report, object.ContainerdContainer, deadSandbox); got.Verdict != object.Unowned {
		t.Errorf("%s: %s", got.Verdict, got.Why)
	}
	n.RuntimeErr = context.DeadlineExceeded
	report, _ = n.inspector().Pass(t.Context(), nil)
	if got := verdicts(report, object.ContainerdContainer); len(got) != 0 {
		t.Errorf("without CRI: %v", got)
	}
	n.Host.Containerd = host.Containerd{}
	if got, err := kinds.Of(object.ContainerdContainer).List(t.Context(), hostscan.New(t.Context(), n.Host,
		hostscan.Deadline{})); got != nil || err != nil {
		t.Errorf("another runtime: %v, %v", got, err)
	}
}

// All leftovers of a sandbox that the runtime and containerd have lost are found, with its pod and, if busy, with its
// holder. Those of a living pod, of one being created, of another namespace, and of a container made by hand are not
// reported.
func TestWhatALostSandboxLeaves(t *testing.T) {
	n := newRuntimeNode(t)
	n.Add(other, "starting")
	ids := map[string]string{"lost": n.realSandbox(dead), "living": n.realSandbox(living),
		"starting": n.realSandbox(other), "moby": mutatetest.Hex(t, 64), "mine": mutatetest.Hex(t, 64)}
	n.run("moby", ids["moby"], n.Host.Paths.CgroupRoot+"/moby", podLabels(dead)...)
	n.run(hostcri.Namespace, ids["mine"], n.Host.Paths.CgroupRoot+"/mine")
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
	check := func(lost object.Verdict) {
		t.Helper()
		for _, kind := range []object.Kind{object.Task, object.Shim, object.Rootfs, object.Snapshot,
			object.SandboxDirectory} {
			want := map[string]object.Verdict{"lost": lost, "living": object.Live, "starting": object.Live,
				"mine": object.Foreign}
			if kind == object.SandboxDirectory {
				delete(want, "mine")
			}
			if diff := cmp.Diff(want, of(report, kind, ids)); diff != "" {
				t.Error(kind, diff, inspecttest.Whys(report, dead))
			}
		}
	}
	check(object.Candidate)
	report, history = passes(t, n.node, i, history, 1, 4*time.Minute)
	check(object.Leftover)
	for kind, fact := range map[object.Kind]string{object.Task: "state", object.Shim: "children",
		object.Rootfs: "type", object.Snapshot: "snapshotter"} {
		o := one(t, report, kind, ids["lost"])
		want := map[object.Kind]string{object.Task: "RUNNING", object.Shim: "1", object.Rootfs: "overlay",
			object.Snapshot: "overlayfs"}[kind]
		if o.Pod.UID != dead || o.Facts[fact] != want {
			t.Errorf("%s: pod %s, %v", kind, o.Pod.UID, o.Facts)
		}
	}
	if held := one(t, report, object.Rootfs, ids["lost"]).Holders; !slices.ContainsFunc(held,
		func(h object.Holder) bool {
			return h.PID == holder.Process.Pid && h.How == "cwd"
		}) {
		t.Errorf("holders of the root filesystem: %+v", held)
	}
	delete(n.forgotten, ids["lost"])  // containerd finds it again
	n.forgotten[ids["living"]] = true // and loses this one, whose process is in a living pod's cgroup
	report, _ = passes(t, n.node, i, history, 1, 4*time.Minute)
	check(object.Candidate)
}

// A bundle that containerd began to remove stays forever; so may the shm of a sandbox.
func TestHiddenBundle(t *testing.T) {
	t.Cleanup(ownedtest.Temp()) // a specification below /tmp is not trusted
	n := newNode(t)
	bundles := filepath.Join(n.Host.Paths.ContainerdState, "io.containerd.runtime.v2.task/k8s.io")
	rootfs := n.Mkdir(bundles, "."+deadSandbox, "rootfs")
	n.Mount("tmpfs", rootfs, "tmpfs", 0)
	n.Mkdir(bundles, "mine")
	told, forged := mutatetest.Hex(t, 64), mutatetest.Hex(t, 64) // only the specification names their pod
	for id, mode := range map[string]os.FileMode{told: 0o644, forged: 0o666} {
		config := filepath.Join(n.Mkdir(bundles, id), "config.json")
		if err := errors.Join(os.WriteFile(config, []byte(`{"annotations": {"io.kubernetes.cri.sandbox-uid": "`+dead+
			`", "io.kubernetes.cri.sandbox-name": "gone", "io.kubernetes.cri.sandbox-namespace": "shop"}}`), mode),
			os.Chmod(config, mode)); err != nil {
			t.Fatal(err)
		}
	}
	shm := n.Mkdir(n.Host.Paths.ContainerdState, "io.containerd.grpc.v1.cri/sandboxes", deadSandbox, "shm")
	n.Mount("shm", shm, "tmpfs", 0)
	for _, dir := range n.Cgroups(n.Host.Paths.CgroupRoot + "/kubepods/burstable/pod" + dead + "/" + deadSandbox) {
		t.Log(dir) // names the pod
	}
	report, _ := passes(t, n, n.inspector(), nil, 4, 4*time.Minute)
	hidden, mine := one(t, report, object.Rootfs, deadSandbox), one(t, report, object.Rootfs, "mine")
	if hidden.Verdict != object.Leftover || hidden.Pod.UID != dead || hidden.Facts["mounts"] != "1" ||
		hidden.Facts["state"] == "" || mine.Verdict != object.Foreign {
		t.Errorf("%+v\n%+v", hidden, mine)
	}
	if o := one(t, report, object.Rootfs, told); o.Verdict != object.Leftover || o.Pod != (object.Pod{UID: dead,
		Namespace: "shop", Name: "gone"}) {
		t.Errorf("named by its specification: %+v", o)
	}
	if o := one(t, report, object.Rootfs, forged); o.Verdict != object.Unowned {
		t.Errorf("named by what others can write: %+v", o)
	}
	if o := one(t, report, object.SandboxDirectory, deadSandbox); o.Verdict != object.Leftover ||
		o.Facts["shmMounts"] != "1" {
		t.Errorf("%+v", o)
	}
}

// A shim is a living pod's if a process of that pod is below it, whatever the runtime knows; one of another containerd
// is foreign.
func TestShimsOfOthers(t *testing.T) {
	n := newNode(t)
	n.Shim(deadSandbox) // without the address of our containerd
	report, _ := passes(t, n, n.inspector(), nil, 4, 4*time.Minute)
	if o := one(t, report, object.Shim, deadSandbox); o.Verdict != object.Foreign {
		t.Errorf("%s: %s", o.Verdict, o.Why)
	}
}

// An ID that two pods claim belongs to neither, and one without a named pod is unowned.
func TestOwnersOfIDs(t *testing.T) {
	n := newNode(t)
	n.Records = []containers.Container{{ID: sandbox, Labels: map[string]string{witness.KindLabel: "sandbox",
		witness.UIDLabel: living}}}
	n.Tasks = []*tasks.Process{{ID: sandbox}, {ID: newSandbox}, {ID: deadSandbox, Status: tasks.Status_STOPPED}}
	bundles := filepath.Join(n.Host.Paths.ContainerdState, "io.containerd.runtime.v2.task/k8s.io")
	n.Cgroups(n.Host.Paths.CgroupRoot + "/kubepods/burstable/pod" + other + "/" + sandbox)
	n.Cgroups(n.Host.Paths.CgroupRoot + "/kubepods/burstable/pod" + dead + "/" + deadSandbox)
	report, _ := passes(t, n, n.inspector(), nil, 4, 4*time.Minute)
	if got := verdicts(report, object.Task); len(got) != 0 {
		t.Errorf("without a bundle, containerd is not asked for tasks: %v", got)
	}
	n.Mkdir(bundles, deadSandbox)
	report, _ = passes(t, n, n.inspector(), nil, 4, 4*time.Minute)
	for id, want := range map[string]object.Verdict{sandbox: object.Foreign, newSandbox: object.Unowned,
		deadSandbox: object.Leftover} {
		if o := one(t, report, object.Task, id); o.Verdict != want {
			t.Errorf("task %.8s: %s: %s", id, o.Verdict, o.Why)
		}
	}
}
