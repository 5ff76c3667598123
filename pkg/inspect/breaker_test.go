package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// boundNode is a node of twenty pods that was away: ten were removed by force, and each of them has a directory and a
// mount that kubelet never removes. Each object of another pod is listed too.
type boundNode struct {
	*fullNode
	more   []object.Object // of pod 0
	broken object.Kind     // whose lister fails
	lacks  string          // "name": the mounts do not tell the pod's name
}

func newBoundNode(t *testing.T) *boundNode {
	n := &boundNode{fullNode: newFullNode(t)}
	n.restarts = true
	for i := 10; i < 20; i++ {
		n.add(inspecttest.UIDOf(i), fmt.Sprintf("web-%d", i))
	}
	for i := range 10 {
		n.delete(inspecttest.UIDOf(i))
		delete(n.sandboxes, inspecttest.UIDOf(i))
		delete(n.running, inspecttest.UIDOf(i))
	}
	return n
}

// look makes a pass over all kinds with a newly started agent.
func (n *boundNode) look(about string) object.Report {
	n.t.Helper()
	data, err := json.Marshal(n.history)
	if err != nil {
		n.t.Fatal(err)
	}
	n.history = nil
	if err := json.Unmarshal(data, &n.history); err != nil {
		n.t.Fatal(err)
	}
	i := New(n.host, n.settings, slog.New(slog.DiscardHandler)).About(about)
	for k, spec := range i.specs {
		i.specs[k].List = func(context.Context, *hostscan.Scan) ([]object.Object, error) {
			var objects []object.Object
			for i := range 20 {
				pod := object.Pod{UID: inspecttest.UIDOf(i), Namespace: "default", Name: fmt.Sprintf("web-%d", i)}
				if n.lacks == "name" {
					pod = object.Pod{UID: pod.UID}
				}
				if spec.Kind == object.Mount || spec.Kind == object.PodDirectory {
					objects = append(objects, object.Object{Kind: spec.Kind, ID: fmt.Sprintf("/pods/%d", i), Pod: pod,
						Identity: object.Identity{Names: map[string]string{"id": fmt.Sprint(i)}}})
				}
			}
			for _, o := range n.more {
				if o.Kind == spec.Kind {
					objects = append(objects, o)
				}
			}
			if spec.Kind == n.broken {
				return nil, errors.New("broken")
			}
			return objects, nil
		}
	}
	asked := len(n.asked)
	report, history := i.Pass(n.t.Context(), n.history)
	n.history = history
	if len(n.asked)-asked > 1 && !strings.HasPrefix(n.asked[len(n.asked)-1], "list ") {
		n.t.Errorf("asked by name in one pass: %v", n.asked[asked:])
	}
	return report
}

func (n *boundNode) looks(d time.Duration) (report object.Report) {
	for end := n.now.SinceBoot + d; n.now.SinceBoot < end; n.after(time.Minute) {
		report = n.look("")
	}
	return report
}

func count(report object.Report, v object.Verdict) (uids map[string]bool) {
	uids = make(map[string]bool)
	for _, o := range report.Objects {
		if o.Verdict == v {
			uids[o.Pod.UID] = true
		}
	}
	return uids
}

// The gate closes as usual; after the grace period, and not before, the stronger proof shows all ten.
func TestBreakerHasAWayOut(t *testing.T) {
	n := newBoundNode(t)
	first := time.Duration(-1)
	began := n.now.SinceBoot
	for range 40 {
		report := n.look("")
		gate := gateOf(report, object.Breaker)
		if gate.Open || gate.Opens == "" {
			t.Fatalf("%+v", gate)
		}
		dead := count(report, object.Leftover)
		if since := n.now.SinceBoot - began; len(dead) > 0 && first < 0 {
			first = since
			if since < n.settings.Grace || since < n.settings.RunningSpacing {
				t.Errorf("proven after %s", since)
			}
		}
		for uid := range dead {
			if uid > inspecttest.UIDOf(9) {
				t.Fatalf("pod %s lives", uid)
			}
		}
		n.after(time.Minute)
	}
	report := n.look("")
	if got := len(count(report, object.Leftover)); got != 10 {
		t.Errorf("%d of ten are proven\n%s", got, inspecttest.Whys(report, inspecttest.UIDOf(0)))
	}
	if most := 30; len(n.asked) > most {
		t.Errorf("asked by name %d times in 40 minutes", len(n.asked))
	}
	for _, o := range report.Objects {
		if (o.Verdict == object.Leftover) != o.PassesBreaker {
			t.Errorf("%s %s: %s, passes %v", o.Kind, o.ID, o.Verdict, o.PassesBreaker)
		}
	}
	since := gateOf(report, object.Breaker).Since
	if got := n.now.Since(since); got != 40*time.Minute {
		t.Errorf("closed since %s", got)
	}
}

func gateOf(r object.Report, name string) object.Gate {
	for _, g := range r.Gates {
		if g.Name == name {
			return g
		}
	}
	return object.Gate{}
}

// With any part of the stronger proof missing, pod 0 stays as it is; so do the others if the part concerns the node.
func TestStrongerProofIsIncomplete(t *testing.T) {
	of0 := func(kind object.Kind, facts ...string) object.Object {
		o := object.Object{Kind: kind, ID: "more", Pod: object.Pod{UID: inspecttest.UIDOf(0), Namespace: "default",
			Name: "web-0"},
			Identity: object.Identity{Names: map[string]string{"id": "m"}}, Facts: object.Facts(facts...)}
		if kind == object.Container || kind == object.Sandbox {
			o.SandboxID = strings.Repeat("a", 64)
		}
		return o
	}
	for name, test := range map[string]struct {
		bend func(n *boundNode) // after 30 undisturbed minutes
		then time.Duration
		why  string
		all  bool // no pod is proven
	}{
		"a process": {func(n *boundNode) { n.more = append(n.more, of0(object.Process)) }, 12 * time.Minute,
			"it has the process", false},
		"a shim": {func(n *boundNode) { n.more = append(n.more, of0(object.Shim)) }, 12 * time.Minute,
			"it has the shim", false},
		"a task": {func(n *boundNode) { n.more = append(n.more, of0(object.Task)) }, 12 * time.Minute,
			"it has the task", false},
		"a cgroup in use": {func(n *boundNode) { n.more = append(n.more, of0(object.Cgroup, "processes", "2")) },
			12 * time.Minute, "has processes", false},
		"an unread cgroup": {func(n *boundNode) { n.more = append(n.more, of0(object.Cgroup)) }, 12 * time.Minute,
			"has processes", false},
		"a sandbox": {func(n *boundNode) { n.more = append(n.more, of0(object.Sandbox, "state", "READY")) },
			12 * time.Minute, "is READY", false},
		"a container": {func(n *boundNode) { n.more = append(n.more, of0(object.Container, "state", "CREATED")) },
			12 * time.Minute, "is CREATED", false},
		"ghosts": {func(n *boundNode) { n.more = append(n.more, of0(object.ContainerdContainer)) },
			12 * time.Minute, "containerd-container", false},
		"a new object": {func(n *boundNode) { n.more = append(n.more, of0(object.Mount)) }, time.Minute, "is new",
			false},
		"a doubtful object": {func(n *boundNode) { o := of0(object.Netns); o.Doubt = "who knows"; n.more = append(n.more, o) }, 12 * time.Minute, "is unknown", false},
		"no processes read": {func(n *boundNode) { n.broken = object.Process }, time.Minute,
			"objects of kind process must be listed", true},
		"no cgroups read": {func(n *boundNode) { n.broken = object.Cgroup }, time.Minute,
			"objects of kind cgroup must be listed", true},
		"kubelet restarted": {func(n *boundNode) {
			process, _ := n.host.Kubelet.Process()
			process.StartTime = uint64(n.now.SinceBoot / (10 * time.Millisecond))
			n.host.Kubelet.Process = func() (host.Process, error) { return process, nil }
			n.settings.KubeletUptime = time.Minute
			n.after(4 * time.Minute) // a gap that does not restart the proof
		}, time.Minute, "kubelet must have had its pods for 10m0s", true},
		"kubelet had no pods for a moment": {func(n *boundNode) {
			books := n.kubelet
			n.kubelet = nil
			n.look("")
			n.after(time.Minute)
			n.kubelet = books
		}, 2 * time.Minute, "kubelet must have had its pods for 10m0s", true},
		"the agent was away": {func(n *boundNode) { n.after(20 * time.Minute) }, time.Minute,
			"kubelet must have had its pods for 10m0s", true},
		"asking is refused": {func(n *boundNode) {
			n.nameErr, n.namedErr = forbidden, errors.New("no")
			n.looks(90 * time.Minute)
		}, time.Minute, "proved nothing", true},
		"names are not known": {func(n *boundNode) {
			n.lacks, n.history = "name", nil
			n.looks(40 * time.Minute)
		}, time.Minute, "its name is not known", true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newBoundNode(t)
			if before := n.looks(30 * time.Minute); len(count(before, object.Leftover)) != 10 {
				t.Fatalf("%d are proven before\n%s", len(count(before, object.Leftover)), inspecttest.Whys(before,
					inspecttest.UIDOf(0)))
			}
			test.bend(n)
			report := n.looks(test.then)
			dead := count(report, object.Leftover)
			if dead[inspecttest.UIDOf(0)] || test.all && len(dead) > 0 || !test.all && len(dead) == 0 {
				t.Errorf("%v are proven", dead)
			}
			if why := inspecttest.Whys(report, inspecttest.UIDOf(0)); !strings.Contains(why, test.why) {
				t.Errorf("want %q:\n%s", test.why, why)
			}
		})
	}
}

// A pod that the apiserver has by name while its list lacks it shows that the list is no proof for any pod.
func TestHeldPodIsThereByName(t *testing.T) {
	n := newBoundNode(t)
	n.names["default/web-3"] = n.pod(inspecttest.UIDOf(3), "default", "web-3")
	for range 120 {
		report := n.look("")
		dead, asked := count(report, object.Leftover), slices.Contains(n.asked, "web-3")
		if dead[inspecttest.UIDOf(3)] || asked && (len(dead) > 0 || gateOf(report, "list-is-ours").Open) {
			t.Fatalf("%v, gate %+v\n%s", dead, gateOf(report, "list-is-ours"), inspecttest.Whys(report, inspecttest.UIDOf(3)))
		}
		n.after(time.Minute)
	}
	if most := 60; len(n.asked) > most { // the existing one every five minutes, nine others every half hour
		t.Errorf("asked by name %d times in two hours", len(n.asked))
	}
}

// Another pod of that name counts like "not found"; if objects name different pods, the name is unknown.
func TestHeldPodByAnotherName(t *testing.T) {
	n := newBoundNode(t)
	n.add(inspecttest.UIDOf(30), "web-0")
	report := n.looks(30 * time.Minute)
	if !count(report, object.Leftover)[inspecttest.UIDOf(0)] || !strings.Contains(inspecttest.Whys(report, inspecttest.UIDOf(0)),
		"is another one now") {
		t.Error(inspecttest.Whys(report, inspecttest.UIDOf(0)))
	}
	n = newBoundNode(t)
	n.more = []object.Object{{Kind: object.Mount, ID: "n", Pod: object.Pod{UID: inspecttest.UIDOf(0),
		Namespace: "default", Name: "db"},
		Identity: object.Identity{Names: map[string]string{"id": "n"}}}}
	report = n.looks(30 * time.Minute)
	if count(report, object.Leftover)[inspecttest.UIDOf(0)] || !strings.Contains(inspecttest.Whys(report, inspecttest.UIDOf(0)),
		"name different pods") {
		t.Error(inspecttest.Whys(report, inspecttest.UIDOf(0)))
	}
}

// The pod that a person or a release is about is asked for first, and again once its answer is old.
func TestAboutIsAskedFirst(t *testing.T) {
	n := newBoundNode(t)
	n.look("")
	n.after(time.Minute)
	for _, about := range []string{"default/web-7", inspecttest.UIDOf(8), "web-9"} {
		n.look(about)
		if got := n.asked[len(n.asked)-1]; !strings.HasSuffix(about, got) && about != inspecttest.UIDOf(8) ||
			about == inspecttest.UIDOf(8) && got != "web-8" {
			t.Errorf("about %s it asked for %s", about, got)
		}
		n.after(time.Minute)
	}
	asked := len(n.asked)
	n.after(9 * time.Minute)
	n.look("web-9")
	if got := n.asked[asked:]; len(got) != 1 || got[0] != "web-9" {
		t.Errorf("with an old answer: %v", got)
	}
}

// A container of a running pod passes only by its own proof.
func TestRunningPodsDoNotPassTheBreaker(t *testing.T) {
	n := newBoundNode(t)
	for i := range 10 {
		n.run(n.pod(inspecttest.UIDOf(i), "default", fmt.Sprintf("web-%d", i)))
	}
	n.sandboxes[inspecttest.UIDOf(1)].State = cri.PodSandboxState_SANDBOX_NOTREADY
	if dead := count(n.looks(90*time.Minute), object.Leftover); len(dead) != 0 {
		t.Errorf("%v", dead)
	}
}
