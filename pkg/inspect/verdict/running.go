package verdict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// A running container is a witness for its pod: two lists without a pod can be wrong for the same reason, and a mistake
// would kill a workload. So a running pod is a leftover only if, in addition to all other conditions,
//
//   - a second list lacks it, Settings.RunningSpacing after the first one,
//   - the apiserver, asked for it by name, does not have it, or has another one of that name,
//   - it is the first one: a report never has more than one such pod.

// RunningSuspects returns the UIDs of the running suspects, sorted by when they are due to be requested by name.
func RunningSuspects(suspects []*object.Object, t *witness.Inventory, history object.History,
	now finding.Timestamp) []string {
	var uids []string
	for _, o := range suspects {
		if uid := o.Pod.UID; t.Runs(uid, history, now) && !slices.Contains(uids, uid) {
			uids = append(uids, uid)
		}
	}
	slices.SortFunc(uids, func(a, b string) int {
		x, y := history.PodSighting(a, now), history.PodSighting(b, now)
		return cmp.Or(cmp.Compare(x.Named.At.SinceBoot, y.Named.At.SinceBoot),
			cmp.Compare(x.First.SinceBoot, y.First.SinceBoot), cmp.Compare(a, b))
	})
	return uids
}

// runningPod holds the facts of one evaluation about a running pod.
type runningPod struct {
	object.Sighting
	counted bool // in this pass
}

// running returns the facts about a running pod, with the apiserver's latest answer; nil if it is not running.
func (e *evaluation) running(uid string) *runningPod {
	if !e.inventory.Runs(uid, e.history, e.now) {
		return nil
	}
	pod := e.pods[uid]
	if pod == nil {
		pod = &runningPod{Sighting: e.history.PodSighting(uid, e.now)}
		if answer, ok := e.inventory.Named[uid]; ok {
			pod.Named = answer
		}
		e.pods[uid] = pod
	}
	return pod
}

// alive reports whether the apiserver has returned the pod by name.
func (p *runningPod) alive(now finding.Timestamp) bool {
	return p != nil && p.Named.Alive && p.Named.Holds(now)
}

// count counts a pass in which no witness knew the pod.
func (p *runningPod) count(t *witness.Inventory, now finding.Timestamp) {
	if p.counted {
		return
	}
	p.counted = true
	older := !object.SameBoot(t.Cluster.At, p.First) ||
		t.Cluster.At.SinceBoot < p.First.SinceBoot // than the first sighting
	p.Sighting = p.AddPass(now)
	if t.Cluster.OK() && !older {
		p.Sighting = p.AddDenial(t.Cluster.At)
	}
}

// missing returns the missing conditions for calling a running pod a leftover.
func (p *runningPod) missing(s object.Settings, now finding.Timestamp) []string {
	var missing []string
	if n := len(p.Denials); n == 0 || p.Denials[n-1].Since(p.Denials[0]) < s.RunningSpacing {
		missing = append(missing, fmt.Sprintf("it is running, so the apiserver must deny it twice, at least %s apart",
			object.Round(s.RunningSpacing)))
	}
	switch {
	case p.Named.At.IsZero():
		missing = append(missing, "it is running, and the apiserver was not asked for it by name yet")
	case !p.Named.Holds(now):
		missing = append(missing, "it is running, and the apiserver was not asked for it by name recently")
	case !p.Named.Gone:
		missing = append(missing,
			"it is running, and asking the apiserver for it by name proved nothing: "+p.Named.Why)
	}
	return missing
}

// missingFromList returns the running pods, and those that the breaker holds, that the apiserver has returned by name
// recently while its list lacks them.
func missingFromList(t *witness.Inventory, history object.History, now finding.Timestamp) []string {
	var names []string
	for uid := range t.Runtime.Pods {
		answer, ok := t.Named[uid]
		if !ok {
			answer = history.PodSighting(uid, now).Named
		}
		if answer.Alive && answer.Holds(now) && t.Cluster.OK() && !witness.HasPod(t.Cluster.Pods, uid) &&
			t.Runs(uid, history, now) {
			names = append(names, t.Runtime.Pods[uid].Namespace+"/"+t.Runtime.Pods[uid].Name)
		}
	}
	for uid, answer := range t.HeldAnswers(history) {
		if answer.Alive && answer.Holds(now) && t.Cluster.OK() && !witness.HasPod(t.Cluster.Pods, uid) {
			names = append(names, cmp.Or(strings.Trim(t.Runtime.Pods[uid].Namespace+"/"+t.Runtime.Pods[uid].Name, "/"), uid))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// onlyOneRuns leaves at most one running pod among the leftovers: the first one denied.
func (e *evaluation) onlyOneRuns(objects []object.Assessment) {
	first := ""
	for i := range objects {
		uid := objects[i].Pod.UID
		if objects[i].Running && objects[i].Verdict == object.Leftover && (first == "" || e.deniedBefore(uid, first)) {
			first = uid
		}
	}
	for i := range objects {
		o := &objects[i]
		if o.Running && o.Verdict == object.Leftover && o.Pod.UID != first {
			o.Verdict, o.Why = object.Candidate, fmt.Sprintf("not yet: another running pod is first, %s; running pods are "+
				"released one at a time", first)
		}
	}
}

// deniedBefore reports whether the apiserver denied the pod a before it denied b.
func (e *evaluation) deniedBefore(a, b string) bool {
	x, y := e.pods[a], e.pods[b]
	return cmp.Or(cmp.Compare(x.Denials[0].SinceBoot, y.Denials[0].SinceBoot), cmp.Compare(a, b)) < 0
}

// keepRunning stores the facts about running suspects.
func (e *evaluation) keepRunning() {
	for uid, pod := range e.pods {
		e.next[object.PodKey(uid)] = pod.Sighting
	}
}
