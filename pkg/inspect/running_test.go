package inspect

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// A pod that the apiserver returns by name is live, whatever its list says, and such a list is no proof about other
// pods.
func TestNamedPodIsLive(t *testing.T) {
	n := newFullNode(t)
	forget(n.kubelet, inspecttest.UIDOf(3))
	forget(n.list, inspecttest.UIDOf(3))
	n.delete(inspecttest.UIDOf(7))
	n.running[inspecttest.UIDOf(7)] = false
	n.during(time.Hour, func(report object.Report) {
		if verdict, why := n.verdict(report, inspecttest.UIDOf(3)); verdict != object.Live ||
			!strings.Contains(why, "returns pod default/web-3 by name") {
			t.Errorf("%s: %s", verdict, why)
		}
		if verdict, why := n.verdict(report, inspecttest.UIDOf(7)); verdict != object.Unknown ||
			!strings.Contains(why, "gate list-is-ours is closed: the list lacks pods") {
			t.Errorf("%s: %s", verdict, why)
		}
	})
	if most := 7; len(n.asked) > most {
		t.Errorf("asked by name %d times in an hour", len(n.asked))
	}
}

// A running, deleted pod: the proof takes longer, and then succeeds.
func TestRunningLeftover(t *testing.T) {
	replaced := func(n *fullNode, uid, name string) {
		n.add(inspecttest.UIDOf(20), name)
		delete(n.sandboxes, inspecttest.UIDOf(20))
	}
	tests := map[string]struct {
		bend func(n *fullNode)
		why  string
		want []string // asked by name
	}{
		"no pod of that name": {func(*fullNode) {}, "the apiserver has no pod default/web-3",
			[]string{"web-3", "web-3"}},
		"another pod of that name": {func(n *fullNode) { replaced(n, inspecttest.UIDOf(20), "web-3") },
			"pod default/web-3 is another one now: its UID is " + inspecttest.UIDOf(20), []string{"web-3", "web-3"}},
		"forbidden, and the list is empty": {func(n *fullNode) { n.nameErr = forbidden },
			"the apiserver lists no pod default/web-3 on this node", []string{"web-3", "list web-3", "web-3",
				"list web-3"}},
		"forbidden, and the list has another pod": {func(n *fullNode) {
			n.nameErr = forbidden
			replaced(n, inspecttest.UIDOf(20), "web-3")
		},
			"pod default/web-3 is another one now", []string{"web-3", "list web-3", "web-3", "list web-3"}},
	}
	for name, test := range tests {
		for _, restarts := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restarts %v", name, restarts), func(t *testing.T) {
				n := newFullNode(t)
				n.delete(inspecttest.UIDOf(3))
				test.bend(n)
				n.restarts = restarts
				first := n.now.SinceBoot
				for {
					report := n.pass()
					verdict, why := n.verdict(report, inspecttest.UIDOf(3))
					if verdict == object.Leftover {
						if !strings.Contains(why, test.why) {
							t.Errorf("%s: %s", verdict, why)
						}
						break
					}
					if verdict != object.Candidate || !strings.Contains(why,
						"it is running, so the apiserver must deny it twice, at least 10m0s apart") {
						t.Fatalf("after %s: %s: %s", n.now.SinceBoot-first, verdict, why)
					}
					n.after(time.Minute)
				}
				if took := n.now.SinceBoot - first; took != 10*time.Minute {
					t.Errorf("after %s", took)
				}
				if got := strings.Join(n.asked, " "); got != strings.Join(test.want, " ") {
					t.Errorf("asked for %s", got)
				}
				for _, o := range n.pass().Objects {
					if o.Running != (o.Pod.UID == inspecttest.UIDOf(3)) {
						t.Errorf("pod %s runs: %v", o.Pod.Name, o.Running)
					}
				}
			})
		}
	}
}

// Of several running, deleted pods there is never more than one in a report, and each gets into one.
func TestOneRunningLeftoverAtATime(t *testing.T) {
	n := newFullNode(t)
	dead := []string{inspecttest.UIDOf(2), inspecttest.UIDOf(5)}
	n.delete(dead...)
	n.after(time.Minute)
	n.delete(inspecttest.UIDOf(8))
	dead = append(dead, inspecttest.UIDOf(8))
	var released []string
	n.during(2*time.Hour, func(report object.Report) {
		found := map[string]bool{}
		for _, o := range report.Objects {
			if o.Verdict == object.Leftover {
				found[o.Pod.UID] = true
			}
		}
		if len(found) > 1 {
			t.Fatalf("leftovers: %v", found)
		}
		for uid := range found {
			for _, later := range dead {
				if verdict, why := n.verdict(report, later); later != uid && n.sandboxes[later] != nil &&
					len(released) == 0 &&
					verdict != object.Candidate {
					t.Errorf("%s: %s", verdict, why)
				}
			}
			released = append(released, uid)
			dead = slices.DeleteFunc(dead, func(d string) bool { return d == uid })
			delete(n.sandboxes, uid)
		}
	})
	if len(released) != 3 || released[2] != inspecttest.UIDOf(8) {
		t.Errorf("released: %v", released)
	}
}

// A container in state running or unknown makes its pod a running one, whatever its sandbox.
func TestRunningStates(t *testing.T) {
	for state, want := range map[cri.ContainerState]bool{
		cri.ContainerState_CONTAINER_RUNNING: true, cri.ContainerState_CONTAINER_UNKNOWN: true,
		cri.ContainerState_CONTAINER_CREATED: false, cri.ContainerState_CONTAINER_EXITED: false,
	} {
		for _, label := range []string{inspecttest.UIDOf(3), ""} {
			n := newFullNode(t)
			s := n.sandboxes[inspecttest.UIDOf(3)]
			s.State = cri.PodSandboxState_SANDBOX_NOTREADY
			n.host.Runtime.Containers = func(context.Context) ([]*cri.Container, error) {
				return []*cri.Container{{Id: "c", PodSandboxId: s.Id, State: state,
					Labels: map[string]string{witness.UIDLabel: label}}}, nil
			}
			inventory := witness.Gather(t.Context(), hostscan.New(t.Context(), n.host, hostscan.Deadline{})).Runtime
			if inventory.Running[inspecttest.UIDOf(3)] != want || inventory.Running[""] {
				t.Errorf("%s, label %q: %v", state, label, inventory.Running)
			}
		}
	}
}

// With two names for one UID, the agent asks for neither.
func TestMisnamedPodIsNotProven(t *testing.T) {
	n := newFullNode(t)
	n.delete(inspecttest.UIDOf(3))
	n.sandboxes["second"] = &cri.PodSandbox{
		Id: strings.Repeat("f", 64), Metadata: &cri.PodSandboxMetadata{Uid: inspecttest.UIDOf(3), Namespace: "default",
			Name: "nobody"},
	}
	n.during(time.Hour, n.noLeftover)
	if len(n.asked) > 0 {
		t.Errorf("asked for %v", n.asked)
	}
}

// If a request by name is forbidden and the pods of that name cannot be listed either, the answer is no proof.
func TestForbiddenNameProvesNothing(t *testing.T) {
	n := newFullNode(t)
	n.delete(inspecttest.UIDOf(3))
	n.nameErr, n.namedErr, n.host.Cluster.PodsNamed = forbidden, forbidden, nil
	scan := hostscan.New(t.Context(), n.host, hostscan.Deadline{})
	inventory := witness.Gather(t.Context(), scan)
	inventory.Cluster.Asked = true
	inventory.AskOneByName(t.Context(), scan, []string{inspecttest.UIDOf(3)}, object.History{}, n.now)
	if got := inventory.Named[inspecttest.UIDOf(3)]; got.Gone || got.Alive || got.Why == "" {
		t.Errorf("forbidden: %+v", got)
	}
}
