package inspect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

var errRefused = fmt.Errorf("status 403: Forbidden (user=system:node:n): %w", fs.ErrPermission)

// byName is the healthy node with a kubelet that refuses /pods. It has one pod; the dead one is long gone.
func byName() Inventory {
	t := healthy()
	t.Kubelet.Pods, t.Kubelet.Names, t.Kubelet.Refused = nil, map[string]int{"default/web": 1}, errRefused
	t.Kubelet.WorkingErr, t.Kubelet.Record, t.Cluster.Version = errRefused, living, "v1.36.3"
	t.Runtime.Pods[living] = SandboxFact{Pod: pod(living, "web").Pod, ID: "web", State: "READY"}
	t.Runtime.Running = map[string]bool{living: true}
	return t
}

// named is an object whose pod has a name, nameless one with only the UID.
func named(uid, name string) Object {
	o := object(PodDirectory, uid)
	o.Pod = Pod{UID: uid, Namespace: "default", Name: name}
	return o
}

// replaced gives kubelet and the apiserver another pod with the name of the dead one.
func replaced(t *Inventory, started bool) {
	p := pod(other, "gone")
	p.Started = started
	t.Kubelet.Names["default/gone"], t.Cluster.Pods[other] = 1, p
	t.Kubelet.Record += other
}

func sandboxOf(t *Inventory, uid, name, state string) {
	t.Runtime.Pods[uid] = SandboxFact{Pod: pod(uid, name).Pod, ID: uid, State: state}
}

func TestEvaluateByName(t *testing.T) {
	gone, nameless := named(dead, "gone"), object(PodDirectory, dead)
	tests := []struct {
		name   string
		object Object
		since  time.Duration // time since it was first seen; 30 minutes unless set
		bend   func(*Inventory, History)
		want   Verdict
		why    string // part of it
	}{
		{"kubelet lacks the name", gone, 0, nil, Leftover, "seen in 6 passes over 30m0s"},
		{"kubelet has the pod", named(living, "web"), 0, nil, Live, "kubelet has its pod"},
		{"it has ended: only the apiserver has it", gone, 0, func(t *Inventory, _ History) {
			t.Cluster.Pods[dead] = PodFact{Pod: gone.Pod, Phase: "Succeeded"}
		}, Live, "the apiserver has its pod"},
		{"twice the grace period", gone, 20 * time.Minute, nil, Leftover, ""},
		{"less than twice the grace period", gone, 19 * time.Minute, nil, Candidate, "1m0s of 20m0s remaining"},
		{"less than twice its own", gone, 0, func(t *Inventory, _ History) {
			t.Runtime.Grace[dead] = 20 * time.Minute
		}, Candidate, "10m0s of 40m0s remaining"},
		{"the denials are not a grace period apart", gone, 0, func(_ *Inventory, h History) {
			s := h[key(&gone)]
			s.Denials = []finding.Timestamp{at(51 * time.Minute)}
			h[key(&gone)] = s
		}, Candidate, "deny it twice, at least 10m0s apart"},
		{"it runs", gone, 0, func(t *Inventory, _ History) {
			t.Runtime.Running[dead] = true
		}, Candidate, "it is running, and only kubelet's /pods would show"},
		{"it is READY, but nothing runs", gone, 0, func(t *Inventory, _ History) {
			sandboxOf(t, dead, "gone", "READY")
		}, Leftover, ""},

		{"kubelet has the name, and nothing is known of it", gone, 0, func(t *Inventory, _ History) {
			t.Kubelet.Names["default/gone"] = 1
		}, Candidate, "nothing shows that it is another one"},
		{"kubelet has the name, and its sandbox", gone, 0, func(t *Inventory, _ History) {
			t.Kubelet.Names["default/gone"] = 1
			sandboxOf(t, dead, "gone", "READY")
		}, Live, "kubelet has its pod"},
		{"kubelet has the name, and there are two sandboxes", gone, 0, func(t *Inventory, _ History) {
			t.Kubelet.Names["default/gone"] = 1
			sandboxOf(t, dead, "gone", "READY")
			sandboxOf(t, other, "gone", "READY")
		}, Candidate, "nothing shows that it is another one"},
		{"another pod has the name, by its sandbox", gone, 0, func(t *Inventory, _ History) {
			replaced(t, false)
			sandboxOf(t, other, "gone", "READY")
		}, Leftover, ""},
		{"another pod has the name, by its status", gone, 0, func(t *Inventory, _ History) {
			replaced(t, true)
		}, Leftover, ""},
		{"... although the old sandbox is READY", gone, 0, func(t *Inventory, _ History) {
			replaced(t, true)
			sandboxOf(t, dead, "gone", "READY")
		}, Leftover, ""},
		{"... but the list is older", gone, 0, func(t *Inventory, _ History) {
			replaced(t, true)
			t.Cluster.At = at(29 * time.Minute)
		}, Candidate, "nothing shows that it is another one"},
		{"... but the list is older, and its sandbox READY", gone, 0, func(t *Inventory, _ History) {
			replaced(t, true)
			sandboxOf(t, dead, "gone", "READY")
			t.Cluster.At = at(29 * time.Minute)
		}, Live, "kubelet has its pod"},
		{"another pod has the name, but kubelet may not have it", gone, 0, func(t *Inventory, _ History) {
			replaced(t, false)
		}, Candidate, "nothing shows that it is another one"},
		{"another pod has the name, but its sandbox is not READY", gone, 0, func(t *Inventory, _ History) {
			replaced(t, false)
			sandboxOf(t, other, "gone", "NOTREADY")
		}, Candidate, "nothing shows that it is another one"},
		{"another pod has the name, and kubelet two of it", gone, 0, func(t *Inventory, _ History) {
			replaced(t, true)
			t.Kubelet.Names["default/gone"] = 2
		}, Candidate, "nothing shows that it is another one"},
		{"its sandboxes have two names", gone, 0, func(t *Inventory, _ History) {
			t.Runtime.Misnamed = map[string]bool{dead: true}
		}, Candidate, "its sandboxes have different pod names"},

		{"no name, and each of kubelet's is another's", nameless, 0, nil, Leftover, ""},
		{"no name, less than three grace periods", nameless, 29 * time.Minute, nil, Candidate, "1m0s of 30m0s remaining"},
		{"no name, and one of kubelet's is nobody's", nameless, 0, func(t *Inventory, _ History) {
			t.Kubelet.Names["default/new"] = 1
		}, Candidate, "which pod default/new of kubelet's is"},
		{"no name, and one of kubelet's has only a sandbox", nameless, 0, func(t *Inventory, _ History) {
			t.Kubelet.Names["default/new"] = 1
			sandboxOf(t, other, "new", "READY")
		}, Candidate, "which pod default/new of kubelet's is"},
		{"no name, and an older list", nameless, 0, func(t *Inventory, _ History) {
			t.Cluster.At = at(29 * time.Minute)
		}, Candidate, "has not been asked since it was first seen"},

		{"kubelet's record names it", gone, 0, func(t *Inventory, _ History) {
			t.Kubelet.Record += dead
		}, Candidate, "it may be a pod that has ended, which kubelet's podresources lack: kubelet's allocated_pods_state " +
			"still names it"},
		{"kubelet's record names it, and it has no name", nameless, 0, func(t *Inventory, _ History) {
			t.Kubelet.Record += dead
		}, Candidate, "still names it"},
		{"kubelet has no record", gone, 0, func(t *Inventory, _ History) {
			t.Kubelet.Record, t.Kubelet.RecordErr = "", fs.ErrNotExist
		}, Candidate, "kubelet's record of its pods: file does not exist"},
		{"kubelet's record is an old one", gone, 0, func(t *Inventory, _ History) {
			t.Kubelet.Record = other
		}, Candidate, "is not current: it lacks the pod default/web"},
		{"an old kubelet lists pods that have ended", gone, 0, func(t *Inventory, _ History) {
			t.Kubelet.Record, t.Kubelet.RecordErr, t.Cluster.Version = "", fs.ErrNotExist, "v1.33.9"
		}, Leftover, ""},
		{"a kubelet of unknown version", gone, 0, func(t *Inventory, _ History) {
			t.Kubelet.Record, t.Kubelet.RecordErr, t.Cluster.Version = "", fs.ErrNotExist, ""
		}, Candidate, "kubelet's record of its pods"},

		{"static, by its UID", named(static, "etcd-n"), 0, nil, Unknown, "a static pod, whose UID only"},
		{"static, by its sandbox", gone, 0, func(t *Inventory, _ History) {
			sandboxOf(t, dead, "gone", "NOTREADY")
			s := t.Runtime.Pods[dead]
			s.Source = "file"
			t.Runtime.Pods[dead] = s
		}, Unknown, "a static pod, whose UID only"},
		{"its UID is in a manifest", nameless, 0, func(t *Inventory, _ History) {
			t.Static.UIDs = map[string]string{dead: "x.yaml"}
		}, Live, "x.yaml sets this UID"},
		{"kubelet is sick", gone, 0, func(t *Inventory, _ History) {
			t.Kubelet.HealthErr = errors.New("syncloop")
		}, Unknown, "kubelet-not-working is closed: its metrics are refused, and it is not known to be healthy: syncloop"},
		{"kubelet tells that it works", gone, 20 * time.Minute, func(t *Inventory, _ History) {
			t.Kubelet.Working, t.Kubelet.WorkingErr = 1, nil
		}, Candidate, "kubelet is still terminating 1 pods"},
		{"the list does not share a pod", gone, 0, func(t *Inventory, _ History) {
			t.Cluster.Shared = 0
		}, Unknown, "gate list-is-ours"},
		{"the apiserver is away", nameless, 0, func(t *Inventory, _ History) {
			t.Cluster.Err = errors.New("away")
		}, Unknown, "gate apiserver-heard"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			inventory, history := byName(), seenLong(test.object)
			for k, s := range history {
				s.First = at(time.Hour - max(test.since, 30*time.Minute))
				if test.since != 0 {
					s.First = at(time.Hour - test.since)
				}
				history[k] = s
			}
			inventory.Cluster.Pods[living] = PodFact{Pod: pod(living, "web").Pod, Phase: "Running", Started: true}
			if test.bend != nil {
				test.bend(&inventory, history)
			}
			report, next := Evaluate([]Object{test.object}, inventory, history, settings(), hour)
			got := report.Objects[0]
			if got.Verdict != test.want || !strings.Contains(got.Why, test.why) {
				t.Errorf("%s: %s\n%v", got.Verdict, got.Why, got.Witnesses)
			}
			if _, kept := next[key(&test.object)]; kept && inventory.Runtime.Running[dead] {
				t.Error("the time in which it runs counts")
			}
			if len(report.Notes) != 1 || !strings.Contains(report.Notes[0], "system:node:n") {
				t.Errorf("notes: %q", report.Notes)
			}
		})
	}
}

func TestCompareNames(t *testing.T) {
	ready := func(uid, name string, source string) SandboxFact {
		return SandboxFact{Pod: pod(uid, name).Pod, ID: uid, State: "READY", Source: source}
	}
	started, ended, mirror := pod(other, "b"), pod(other, "b"), pod(static, "b")
	lacked := Comparison{Listed: 1, Lacked: 1, Proven: []string{"default/b"}}
	started.Started, ended.Phase, mirror.Mirror = true, "Failed", true
	tests := map[string]struct {
		names     map[string]int
		list      []PodFact
		sandboxes []SandboxFact
		running   string
		want      Comparison
	}{
		"shared": {map[string]int{"default/a": 1}, []PodFact{pod(living, "a")}, []SandboxFact{ready(living, "a", "api")},
			"", Comparison{Shared: 1, Wanted: 1, Listed: 1}},
		"the same name only": {map[string]int{"default/a": 1}, []PodFact{pod(living, "a")},
			[]SandboxFact{ready(other, "a", "api")}, "", Comparison{Wanted: 1, Listed: 1}},
		"no sandbox": {map[string]int{"default/a": 1}, []PodFact{pod(living, "a")}, nil, "",
			Comparison{Wanted: 1, Listed: 1}},
		"missing": {map[string]int{"default/a": 1}, nil, []SandboxFact{ready(living, "a", "api")}, "",
			Comparison{Wanted: 1, Missing: 1}},
		"static": {map[string]int{"default/b": 1}, nil, []SandboxFact{ready(static, "b", "file")}, "", Comparison{}},
		"a mirror": {map[string]int{"default/b": 1}, []PodFact{mirror}, []SandboxFact{ready(static, "b", "")}, "",
			Comparison{}},
		"lacked":              {nil, []PodFact{pod(other, "b")}, nil, "", Comparison{Listed: 1, Lacked: 1}},
		"lacked, started":     {nil, []PodFact{started}, nil, "", lacked},
		"lacked, and runs":    {nil, []PodFact{pod(other, "b")}, nil, other, lacked},
		"has ended":           {nil, []PodFact{ended}, nil, "", Comparison{}},
		"has ended, and runs": {nil, []PodFact{ended}, nil, other, lacked},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			inventory := Inventory{Runtime: RuntimeInventory{Pods: map[string]SandboxFact{},
				Running: map[string]bool{test.running: true}}}
			list := make(map[string]PodFact)
			for _, p := range test.list {
				list[p.UID] = p
			}
			for _, s := range test.sandboxes {
				inventory.Runtime.Pods[s.UID] = s
			}
			inventory.Kubelet.Names = test.names
			if diff := cmp.Diff(test.want, inventory.compareNames(list)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestStillGoneByName(t *testing.T) {
	web3 := Pod{UID: uidOf(3), Namespace: "default", Name: "web-3"}
	tests := map[string]struct {
		pod   Pod
		bend  func(n *fullNode)
		want  string // part of the error; empty: still gone
		lists int
	}{
		"a pod":   {web3, func(*fullNode) {}, "", 0},
		"it runs": {web3, func(n *fullNode) { n.running[uidOf(3)] = true }, "runs again", 0},
		"kubelet has it again": {web3, func(n *fullNode) { n.add(uidOf(3), "web-3"); n.running[uidOf(3)] = false },
			"the apiserver", 1},
		"only kubelet has it again": {web3, func(n *fullNode) {
			n.kubelet[uidOf(3)] = n.pod(uidOf(3), "default", "web-3")
		}, "kubelet for pod " + uidOf(3) + " again: knows", 1},
		"only kubelet has it again, ended": {web3, func(n *fullNode) {
			p := n.pod(uidOf(3), "default", "web-3")
			p.Status.Phase = corev1.PodFailed
			n.kubelet[uidOf(3)] = p
		}, "allocated_pods_state names pod " + uidOf(3) + " again", 0},
		"another one has its name": {web3, func(n *fullNode) { n.add(uidOf(20), "web-3") }, "", 1},
		"no name":                  {Pod{UID: uidOf(3)}, func(*fullNode) {}, "", 1},
		"no name, and one of kubelet's is not listed": {Pod{UID: uidOf(3)}, func(n *fullNode) {
			n.kubelet[uidOf(20)] = n.pod(uidOf(20), "default", "new")
		}, "which pod default/new of kubelet's is", 1},
		"no name, and the apiserver is away": {Pod{UID: uidOf(3)}, func(n *fullNode) {
			n.host.Cluster.Pods = func(context.Context) ([]corev1.Pod, error) { return nil, errors.New("away") }
		}, "away", 0},
		"static": {Pod{UID: goneStatic, Namespace: "default", Name: "x-node-a"}, func(*fullNode) {},
			"may be a static one", 0},
		"the runtime is away": {web3, func(n *fullNode) {
			n.host.Runtime.Containers = func(context.Context) ([]*cri.Container, error) { return nil, errors.New("away") }
		}, "ask the runtime", 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n := newFullNode(t)
			n.refuse()
			n.delete(uidOf(3))
			n.running[uidOf(3)] = false
			test.bend(n)
			err := n.inspector.StillGone(t.Context(), test.pod)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if n.lists != test.lists {
				t.Errorf("%d lists", n.lists)
			}
		})
	}
}

// Once the full right is granted, the agent uses /pods again: the history goes on.
func TestRightIsGranted(t *testing.T) {
	n := newFullNode(t)
	pods, metric := n.host.Kubelet.Pods, n.host.Kubelet.Metric
	n.refuse()
	n.delete(uidOf(3))
	n.running[uidOf(3)] = false
	n.during(10*time.Minute, n.noLeftover)
	n.host.Kubelet.Pods, n.host.Kubelet.Metric = pods, metric
	if verdict, why := n.verdict(n.pass(), uidOf(3)); verdict != Leftover {
		t.Errorf("%s: %s", verdict, why)
	}
}
