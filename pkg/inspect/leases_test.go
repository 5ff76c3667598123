package inspect

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tasks "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/google/go-cmp/cmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// leaseWorld is a node on which only the lease and the network of a dead pod's sandbox are left.
func leaseWorld(t *testing.T) *node {
	t.Helper()
	hosttest.PrivateNetwork(t)
	n := newNode(t)
	n.Attach(dead, deadSandbox)
	n.Leases = append(n.Leases, leases.Lease{ID: deadSandbox})
	return n
}

var leaseKinds = []object.Kind{object.Lease, object.CNIAttachment, object.Netns, object.Link}

func allOf(v object.Verdict) map[object.Kind]object.Verdict {
	return map[object.Kind]object.Verdict{object.Lease: v, object.CNIAttachment: v, object.Netns: v, object.Link: v}
}

// A lease that outlived a crash of containerd is a leftover after passes and grace, and the network of its sandbox with
// it; not earlier, since a sandbox being created has its lease first.
func TestLeaseOfADeadSandbox(t *testing.T) {
	n := leaseWorld(t)
	i := n.inspector()
	report, history := passes(t, n, i, nil, 3, 4*time.Minute)
	if diff := cmp.Diff(allOf(object.Candidate), verdictsOf(report, leaseKinds...)); diff != "" {
		t.Error("before the grace: ", diff)
	}
	report, history = passes(t, n, i, history, 1, 4*time.Minute)
	if diff := cmp.Diff(allOf(object.Leftover), verdictsOf(report, leaseKinds...)); diff != "" {
		t.Error(diff, inspecttest.Whys(report, dead))
	}
	if err := os.RemoveAll(filepath.Join(n.Host.Paths.CNICacheDir, "results")); err != nil { // as after CNI DEL
		t.Fatal(err)
	}
	report, _ = passes(t, n, i, history, 1, time.Minute)
	if diff := cmp.Diff(map[object.Kind]object.Verdict{object.Lease: object.Leftover}, verdictsOf(report,
		object.Lease)); diff != "" {
		t.Error("after DEL: ", diff)
	}
}

// Any other trace of the sandbox keeps the lease, and the lease keeps the network.
func TestLeaseOfASandboxThatIsNotGone(t *testing.T) {
	for name, bend := range map[string]func(n *node){
		"CRI has it": func(n *node) {
			n.Sandboxes = append(n.Sandboxes, &cri.PodSandbox{Id: deadSandbox,
				Metadata: &cri.PodSandboxMetadata{Uid: dead}})
		},
		"containerd's container": func(n *node) {
			n.Records = append(n.Records, containers.Container{ID: deadSandbox,
				Labels: map[string]string{witness.KindLabel: "sandbox"}})
		},
		"containerd's record": func(n *node) { n.Stored = []string{deadSandbox} },
		"containerd's task":   func(n *node) { n.Tasks = []*tasks.Process{{ID: deadSandbox}} },
		"nobody can say":      func(n *node) { n.CarrierErr = errors.New("away") },
		"the pod is known":    func(n *node) { n.Add(dead, "p") },
		"the lease has a label": func(n *node) {
			n.Leases[0].Labels = map[string]string{"containerd.io/gc.expire": "tomorrow"}
		},
		"another client's lease": func(n *node) { n.Leases[0].Labels = map[string]string{"x": "y"} },
		"nothing at all":         func(n *node) { n.Leases[0].CreatedAt = time.Time{} }, // the control
		"containerd does not answer": func(n *node) {
			n.Host.Containerd.Containers = func(context.Context) ([]containers.Container, error) {
				return nil, errors.New("away")
			}
		},
	} {
		checkLease(t, name, bend, name == "nothing at all")
	}
}

// A shim that outlived its sandbox, too.
func TestLeaseOfASandboxWithAShim(t *testing.T) {
	checkLease(t, "a shim", func(n *node) { n.Shim(deadSandbox) }, false)
}

// checkLease makes enough passes and checks whether the lease, and the network with it, has become a leftover.
func checkLease(t *testing.T, name string, bend func(*node), leftover bool) {
	t.Helper()
	n := leaseWorld(t)
	bend(n)
	i := n.inspector()
	var report object.Report
	var history object.History
	for range 5 {
		n.After(4 * time.Minute)
		report, history = i.Pass(t.Context(), history)
	}
	for _, kind := range leaseKinds {
		if got := verdictsOf(report, kind)[kind]; (got == object.Leftover) != leftover {
			t.Errorf("%s: %s is %q\n%s", name, kind, got, inspecttest.Whys(report, dead))
		}
	}
}

// Leases of other formats are foreign, and one without a pod is only reported.
func TestLeasesOfOthers(t *testing.T) {
	n := newNode(t)
	n.Leases = []leases.Lease{
		{ID: "1234-abcd"}, {ID: strings.ToUpper(strings.Repeat("ab", 32))}, {ID: deadSandbox + "0"},
		{ID: deadSandbox, Labels: map[string]string{"containerd.io/gc.flat": "1"}}, {ID: newSandbox},
	}
	report, _ := passes(t, n, n.inspector(), nil, 1, time.Minute)
	got := verdicts(report)[object.Lease]
	if diff := cmp.Diff(map[object.Verdict]int{object.Foreign: 4, object.Live: 1}, got); diff != "" {
		t.Error(diff)
	}
	report, _ = n.inspector(func(s *object.Settings) {
		*s = object.Settings{HostNamespaces: true, MassOrphaning: 9}
	}).Pass(t.Context(), nil)
	if diff := cmp.Diff(map[object.Verdict]int{object.Foreign: 4, object.Unowned: 1},
		verdicts(report)[object.Lease]); diff != "" {
		t.Error(diff)
	}
	n.Host.Containerd = host.Containerd{} // another runtime
	if objects, err := kinds.Of(object.Lease).List(t.Context(), hostscan.New(t.Context(), n.Host,
		hostscan.Deadline{})); len(objects) != 0 || err != nil {
		t.Errorf("%v, %v", objects, err)
	}
}

// A sandbox being created has its lease first, then its namespace, then its attachment; CRI lists it last. None of them
// is a leftover at any time, however long that takes within the grace, nor if the lists of pods lag behind.
func TestStartingSandboxKeepsItsLease(t *testing.T) {
	hosttest.PrivateNetwork(t)
	n := newNode(t)
	n.Leases = append(n.Leases, leases.Lease{ID: newSandbox})
	i := n.inspector()
	never := func(report object.Report, what string) {
		t.Helper()
		for kind, verdict := range verdictsOf(report, leaseKinds...) {
			if verdict == object.Leftover || verdict == object.Unowned {
				t.Errorf("%s: %s is %s", what, kind, verdict)
			}
		}
	}
	report, history := passes(t, n, i, nil, 3, time.Minute)
	never(report, "lease alone")
	n.Attach(other, newSandbox)
	report, history = passes(t, n, i, history, 3, 3*time.Minute)
	never(report, "attached, and no list has the pod")
	n.Add(other, "late")
	report, history = passes(t, n, i, history, 2, 10*time.Minute)
	if diff := cmp.Diff(allOf(object.Live), verdictsOf(report, leaseKinds...)); diff != "" {
		t.Error("listed: ", diff)
	}
	n.Remove(other)
	report, _ = passes(t, n, i, history, 2, 4*time.Minute)
	never(report, "deleted a moment ago")
}
