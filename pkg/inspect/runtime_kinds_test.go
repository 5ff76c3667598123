package inspect

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
	return func(ctx context.Context) (kept []T, err error) {
		all, err := list(ctx)
		for _, one := range all {
			if gone := false; !gone {
				for _, f := range forgotten {
					gone = gone || f[id(one)]
				}
				if !gone {
					kept = append(kept, one)
				}
			}
		}
		return kept, err
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
