package inspect

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
)

// A pod that the apiserver returns by name is live, whatever its list says, and such a list is no proof about other
// pods.
func TestNamedPodIsLive(t *testing.T) {
	n := newFullNode(t)
	forget(n.kubelet, uidOf(3))
	forget(n.list, uidOf(3))
	n.delete(uidOf(7))
	n.running[uidOf(7)] = false
	n.during(time.Hour, func(report Report) {
		if verdict, why := n.verdict(report, uidOf(3)); verdict != Live ||
			!strings.Contains(why, "returns pod default/web-3 by name") {
			t.Errorf("%s: %s", verdict, why)
		}
		if verdict, why := n.verdict(report, uidOf(7)); verdict != Unknown ||
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
		n.add(uidOf(20), name)
		delete(n.sandboxes, uidOf(20))
	}
	tests := map[string]struct {
		bend func(n *fullNode)
		why  string
		want []string // asked by name
	}{
		"no pod of that name": {func(*fullNode) {}, "the apiserver has no pod default/web-3",
			[]string{"web-3", "web-3"}},
		"another pod of that name": {func(n *fullNode) { replaced(n, uidOf(20), "web-3") },
			"pod default/web-3 is another one now: its UID is " + uidOf(20), []string{"web-3", "web-3"}},
		"forbidden, and the list is empty": {func(n *fullNode) { n.nameErr = forbidden },
			"the apiserver lists no pod default/web-3 on this node", []string{"web-3", "list web-3", "web-3",
				"list web-3"}},
		"forbidden, and the list has another pod": {func(n *fullNode) {
			n.nameErr = forbidden
			replaced(n, uidOf(20), "web-3")
		},
			"pod default/web-3 is another one now", []string{"web-3", "list web-3", "web-3", "list web-3"}},
	}
	for name, test := range tests {
		for _, restarts := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restarts %v", name, restarts), func(t *testing.T) {
				n := newFullNode(t)
				n.delete(uidOf(3))
				test.bend(n)
				n.restarts = restarts
				first := n.now.SinceBoot
				for {
					report := n.pass()
					verdict, why := n.verdict(report, uidOf(3))
					if verdict == Leftover {
						if !strings.Contains(why, test.why) {
							t.Errorf("%s: %s", verdict, why)
						}
						break
					}
					if verdict != Candidate || !strings.Contains(why,
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
					if o.Running != (o.Pod.UID == uidOf(3)) {
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
	dead := []string{uidOf(2), uidOf(5)}
	n.delete(dead...)
	n.after(time.Minute)
	n.delete(uidOf(8))
	dead = append(dead, uidOf(8))
	var released []string
	n.during(2*time.Hour, func(report Report) {
		found := map[string]bool{}
		for _, o := range report.Objects {
			if o.Verdict == Leftover {
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
					verdict != Candidate {
					t.Errorf("%s: %s", verdict, why)
				}
			}
			released = append(released, uid)
			dead = slices.DeleteFunc(dead, func(d string) bool { return d == uid })
			delete(n.sandboxes, uid)
		}
	})
	if len(released) != 3 || released[2] != uidOf(8) {
		t.Errorf("released: %v", released)
	}
}

// A container in state running or unknown makes its pod a running one, whatever its sandbox.
func TestRunningStates(t *testing.T) {
	for state, want := range map[cri.ContainerState]bool{
		cri.ContainerState_CONTAINER_RUNNING: true, cri.ContainerState_CONTAINER_UNKNOWN: true,
		cri.ContainerState_CONTAINER_CREATED: false, cri.ContainerState_CONTAINER_EXITED: false,
	} {
		for _, label := range []string{uidOf(3), ""} {
			n := newFullNode(t)
			s := n.sandboxes[uidOf(3)]
			s.State = cri.PodSandboxState_SANDBOX_NOTREADY
			n.host.Runtime.Containers = func(context.Context) ([]*cri.Container, error) {
				return []*cri.Container{{Id: "c", PodSandboxId: s.Id, State: state,
					Labels: map[string]string{UIDLabel: label}}}, nil
			}
			inventory := Gather(t.Context(), hostscan.New(t.Context(), n.host, hostscan.Deadline{})).Runtime
			if inventory.Running[uidOf(3)] != want || inventory.Running[""] {
				t.Errorf("%s, label %q: %v", state, label, inventory.Running)
			}
		}
	}
}

// With two names for one UID, the agent asks for neither.
func TestMisnamedPodIsNotProven(t *testing.T) {
	n := newFullNode(t)
	n.delete(uidOf(3))
	n.sandboxes["second"] = &cri.PodSandbox{
		Id: strings.Repeat("f", 64), Metadata: &cri.PodSandboxMetadata{Uid: uidOf(3), Namespace: "default",
			Name: "nobody"},
	}
	n.during(time.Hour, n.noLeftover)
	if len(n.asked) > 0 {
		t.Errorf("asked for %v", n.asked)
	}
}

// The missing conditions of a running pod, one at a time.
func TestRunningPodRules(t *testing.T) {
	answer := func(bend func(*NameAnswer)) NameAnswer {
		a := NameAnswer{At: at(55 * time.Minute), Gone: true, Why: "nobody"}
		bend(&a)
		return a
	}
	for name, test := range map[string]struct {
		denials []time.Duration
		named   NameAnswer
		want    string
	}{
		"proven": {[]time.Duration{40 * time.Minute, 50 * time.Minute}, answer(func(*NameAnswer) {}),
			""},
		"never denied": {nil, answer(func(*NameAnswer) {}), "must deny it twice"},
		"denied once": {[]time.Duration{40 * time.Minute}, answer(func(*NameAnswer) {}),
			"must deny it twice"},
		"denied twice, too soon": {[]time.Duration{40*time.Minute + 1, 50 * time.Minute}, answer(func(*NameAnswer) {}),
			"must deny it twice"},
		"not asked by name": {[]time.Duration{40 * time.Minute, 50 * time.Minute}, NameAnswer{},
			"was not asked for it by name yet"},
		"asked long ago": {[]time.Duration{40 * time.Minute, 50 * time.Minute}, answer(func(a *NameAnswer) {
			a.At = at(50 * time.Minute)
		}), "by name recently"},
		"asked in an old boot": {[]time.Duration{40 * time.Minute, 50 * time.Minute}, answer(func(a *NameAnswer) {
			a.At.Boot = "boot-0"
		}), "by name recently"},
		"asked, proved nothing": {[]time.Duration{40 * time.Minute, 50 * time.Minute}, answer(func(a *NameAnswer) {
			a.Gone = false
		}), "proved nothing: nobody"},
		"asked in the future": {[]time.Duration{40 * time.Minute, 50 * time.Minute}, answer(func(a *NameAnswer) {
			a.At = at(2 * time.Hour)
		}), "by name recently"},
		"asked, and it was alive": {[]time.Duration{40 * time.Minute, 50 * time.Minute}, answer(func(a *NameAnswer) {
			a.Gone, a.Alive = false, true
		}), "has its"},
	} {
		t.Run(name, func(t *testing.T) {
			o := object(Cgroup, dead)
			inventory, history := healthy(), seenLong(o)
			inventory.Runtime.Running = map[string]bool{dead: true}
			inventory.Runtime.Pods[dead] = SandboxFact{Pod: Pod{UID: dead, Namespace: "default", Name: "x"},
				State: "READY"}
			s := Sighting{First: at(30 * time.Minute), Last: at(50 * time.Minute), Passes: 5, Named: test.named}
			for _, d := range test.denials {
				s.Denials = append(s.Denials, at(d))
			}
			history[podKey(dead)] = s
			inventory.Cluster.At = at(50 * time.Minute) // the list of the last denial
			if len(test.denials) < 2 {
				inventory.Cluster.At = at(40 * time.Minute)
			}
			if test.denials == nil {
				inventory.Cluster.At = at(30 * time.Minute)
			}
			history[key(&o)] = Sighting{
				Identity: o.Identity, First: at(30 * time.Minute), Last: at(50 * time.Minute), Passes: 5,
				Denials: []finding.Timestamp{at(31 * time.Minute), at(40 * time.Minute)},
			}
			report, _ := Evaluate([]Object{o}, inventory, history, settings(), hour)
			got := report.Objects[0]
			switch {
			case test.want == "" && got.Verdict != Leftover:
				t.Errorf("%s: %s", got.Verdict, got.Why)
			case test.named.Alive && got.Verdict != Live:
				t.Errorf("%s: %s", got.Verdict, got.Why)
			case test.want != "" && !test.named.Alive &&
				(got.Verdict != Candidate || !strings.Contains(got.Why, test.want)):
				t.Errorf("%s: %s", got.Verdict, got.Why)
			}
			if !got.Running {
				t.Error("is not marked as running")
			}
		})
	}
}

// If a request by name is forbidden and the pods of that name cannot be listed either, the answer proves nothing.
func TestForbiddenNameProvesNothing(t *testing.T) {
	n := newFullNode(t)
	n.delete(uidOf(3))
	n.nameErr, n.namedErr, n.host.Cluster.PodsNamed = forbidden, forbidden, nil
	scan := hostscan.New(t.Context(), n.host, hostscan.Deadline{})
	inventory := Gather(t.Context(), scan)
	inventory.Cluster.Asked = true
	inventory.askOneByName(t.Context(), scan, []string{uidOf(3)}, History{}, n.now)
	if got := inventory.Named[uidOf(3)]; got.Gone || got.Alive || got.Why == "" {
		t.Errorf("forbidden: %+v", got)
	}
}

// Of several proven pods the first denied one is chosen, and of those denied at once the one with the lower UID.
func TestFirstDeniedIsFirst(t *testing.T) {
	denied := func(d time.Duration) *runningPod {
		return &runningPod{Sighting: Sighting{Denials: []finding.Timestamp{at(d)}}}
	}
	for _, order := range [][]string{{"a", "b", "c"}, {"c", "b", "a"}, {"b", "c", "a"}} {
		j := evaluation{pods: map[string]*runningPod{"a": denied(2 * time.Minute), "b": denied(time.Minute),
			"c": denied(time.Minute)}}
		var objects []Assessment
		for _, uid := range order {
			objects = append(objects, Assessment{Object: object(Process, uid), Verdict: Leftover, Running: true})
		}
		objects = append(objects, Assessment{Object: object(Process, "d"), Verdict: Leftover})
		j.onlyOneRuns(objects)
		for _, o := range objects {
			if want := map[string]Verdict{"a": Candidate, "b": Leftover, "c": Candidate,
				"d": Leftover}[o.Pod.UID]; o.Verdict != want {
				t.Errorf("%v: %s is %s", order, o.Pod.UID, o.Verdict)
			}
		}
	}
}
