package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
)

// The gate against mass orphaning protects living pods that a witness wrongly denies. If a node was away and its pods
// were removed by force, many real leftovers close it, and would forever. So a pod without running processes may pass
// by a second, stronger proof (see strongerProof). A release takes one such pod per pass: see release.Plan.

// Breaker is the name of the gate against mass orphaning.
const Breaker = "no-mass-orphaning"

// strongLasts is how long the answer about a pod by name counts for the stronger proof. A release asks again: see
// Inspector.About.
const strongLasts = time.Hour

// namedKey is the key in the history of the apiserver's answer about a pod that the breaker holds, and sourcesKey the
// key of the time since when kubelet has had its pods. No kind of object has such keys.
func namedKey(uid string) string { return "named/" + uid }

const sourcesKey = "open/kubelet-sources"

// mayRun returns why a process of the object's pod may be running.
func mayRun(o *Object) string {
	switch {
	case o.Kind == Sandbox && o.Facts["state"] != "NOTREADY", o.Kind == Container && o.Facts["state"] != "EXITED":
		return fmt.Sprintf("its %s %s is %s", o.Kind, o.ID, cmp.Or(o.Facts["state"], "in an unknown state"))
	case o.Kind == Process || o.Kind == Shim || o.Kind == Task || o.Kind == ContainerdContainer:
		return fmt.Sprintf("it has the %s %s", o.Kind, o.ID)
	case o.Kind == Cgroup && o.Facts["processes"] != "0":
		return fmt.Sprintf("its cgroup %s has processes", o.ID)
	case o.InUse != "":
		return fmt.Sprintf("its %s %s is in use: %s", o.Kind, o.ID, o.InUse)
	}
	return ""
}

// passBreaker makes leftovers of the objects held only by the breaker if the stronger proof of their pod is complete;
// to the others it adds the missing parts of that proof.
func (e *evaluation) passBreaker(all []Assessment) {
	proofs := make(map[string][]string)
	for i := range all {
		o := &all[i]
		proof, held := e.held[key(&o.Object)]
		if !held {
			continue
		}
		missing, done := proofs[o.Pod.UID]
		if !done {
			missing = e.strongerProof(o.Pod.UID, all)
			proofs[o.Pod.UID] = missing
		}
		if len(missing) > 0 {
			o.Why += "; to pass it: " + strings.Join(missing, "; to pass it: ")
			continue
		}
		o.Verdict, o.PassesBreaker = Leftover, true
		o.Why = fmt.Sprintf("%s; gate %s is closed, and the stronger proof passes it: nothing of the pod runs, kubelet "+
			"has had its pods since %s, %s", proof, Breaker, e.next[sourcesKey].First.Wall.UTC().Format(time.TimeOnly+"Z"),
			e.next[namedKey(o.Pod.UID)].Named.Why)
	}
}

// strongerProof returns what is missing to take a pod through the breaker: no process of it runs, kubelet has had its
// pods for the whole grace period, and two lists and an answer by name deny it. None of its objects may be new or in
// doubt.
func (e *evaluation) strongerProof(uid string, all []Assessment) (missing []string) {
	// the kinds that show a running process
	for _, kind := range []Kind{Sandbox, Container, ContainerdContainer, Process, Shim, Task, Cgroup} {
		if e.inventory.Unlisted[kind] {
			missing = append(missing, fmt.Sprintf("objects of kind %s must be listed", kind))
		}
	}
	if e.inventory.Runtime.Running[uid] {
		missing = append(missing, "the runtime says that it runs")
	}
	grace := max(e.settings.Grace, e.inventory.Runtime.Grace[uid])
	for i := range all {
		if o := &all[i]; o.Pod.UID == uid {
			missing = append(missing, e.notStrong(o, grace)...)
		}
	}
	sources, open := e.next[sourcesKey]
	switch since := e.now.Since(sources.First); {
	case !open:
		missing = append(missing, "kubelet must show that it has its pods")
	case since < grace || sources.Passes < e.settings.Passes:
		missing = append(missing, fmt.Sprintf("kubelet must have had its pods for %s without interruption: so far %s, "+
			"seen in %d passes", round(grace), round(since), sources.Passes))
	}
	nameless := e.nameless(uid, all)
	switch named := e.next[namedKey(uid)].Named; {
	case nameless != "":
		missing = append(missing, nameless)
	case named.At.IsZero():
		missing = append(missing, "the apiserver must be asked for it by name")
	case !sameBoot(named.At, e.now) || e.now.Since(named.At) >= strongLasts:
		missing = append(missing, "the apiserver was not asked for it by name recently")
	case !named.Gone:
		missing = append(missing, "asking the apiserver for it by name proved nothing: "+named.Why)
	}
	slices.Sort(missing)
	return slices.Compact(missing)
}

// notStrong returns why one object speaks against the stronger proof of its pod.
func (e *evaluation) notStrong(o *Assessment, grace time.Duration) (missing []string) {
	if why := mayRun(&o.Object); why != "" {
		missing = append(missing, why)
	}
	switch {
	case e.specs[o.Kind].ReportOnly != "" || Of(o.Kind).Minor():
	case o.Verdict == Unknown || o.Verdict == Live || o.Verdict == Foreign:
		missing = append(missing, fmt.Sprintf("its %s %s is %s", o.Kind, o.ID, o.Verdict))
	case o.FirstSeen.IsZero() || e.now.Since(o.FirstSeen) < grace:
		missing = append(missing, fmt.Sprintf("its %s %s is new: nothing of it may be", o.Kind, o.ID))
	}
	if _, held := e.held[key(&o.Object)]; !held {
		return missing
	}
	denials := e.next[key(&o.Object)].Denials
	if n := len(denials); n == 0 || denials[n-1].Since(denials[0]) < e.settings.RunningSpacing {
		missing = append(missing, fmt.Sprintf("the apiserver must deny it twice, at least %s apart",
			round(e.settings.RunningSpacing)))
	}
	return missing
}

// nameless returns why the apiserver cannot be asked for a pod by name.
func (e *evaluation) nameless(uid string, all []Assessment) string {
	var objects []*Object
	for i := range all {
		objects = append(objects, &all[i].Object)
	}
	_, unknown := e.inventory.nameOf(uid, objects)
	return unknown
}

// nameOf returns the name of a pod, on which all of its named objects and sandboxes must agree, or why it is unknown.
func (t *Inventory) nameOf(uid string, objects []*Object) (pod Pod, unknown string) {
	names := []Pod{t.Runtime.Pods[uid].Pod}
	for _, o := range objects {
		if o.Pod.UID == uid {
			names = append(names, o.Pod)
		}
	}
	names = slices.DeleteFunc(names, func(p Pod) bool { return p.Namespace == "" || p.Name == "" })
	switch {
	case len(names) == 0:
		return Pod{}, "its name is not known, so the apiserver cannot be asked for it"
	case t.Runtime.Misnamed[uid] || slices.ContainsFunc(names, func(p Pod) bool {
		return p.Namespace != names[0].Namespace || p.Name != names[0].Name
	}):
		return Pod{}, "its objects name different pods, so the apiserver cannot be asked for it"
	}
	return Pod{UID: uid, Namespace: names[0].Namespace, Name: names[0].Name}, ""
}

// keepNamed keeps the apiserver's answers about pods that the breaker may hold, while they count. An answer that a pod
// exists by name while the list lacks it also counts in passes in which other gates hold the pod.
func (e *evaluation) keepNamed() {
	if _, closed := e.history["closed/"+Breaker]; !closed && e.gate(Breaker).Open {
		return
	}
	for uid, answer := range e.inventory.heldAnswers(e.history) {
		if sameBoot(answer.At, e.now) && e.now.Since(answer.At) < strongLasts && !e.inventory.Runtime.Running[uid] {
			e.next[namedKey(uid)] = Sighting{First: e.now, Last: e.now, Named: answer}
		}
	}
}

// noteGates stores since when gates are closed, and since when kubelet has had its pods while the breaker was closed.
func (e *evaluation) noteGates() {
	for i := range e.gates {
		g := &e.gates[i]
		if g.Open {
			continue
		}
		s := e.unbroken("closed/" + g.Name)
		g.Since, g.Opens = s.First, g.opens()
		e.next["closed/"+g.Name] = s
	}
	if e.gate(Breaker).Open || !e.inventory.Cluster.OK() || !e.gate("kubelet-heard").Open ||
		!e.gate("kubelet-sources").Open || !e.gate("kubelet-uptime").Open {
		return
	}
	s := e.unbroken(sourcesKey)
	if k := &e.inventory.Kubelet; k.AgeErr != nil || e.now.SinceBoot-k.Age > s.First.SinceBoot {
		s = Sighting{First: e.now, Last: e.now, Passes: 1} // a new process has to show it anew
	}
	e.next[sourcesKey] = s
}

func (e *evaluation) gate(name string) gate {
	n := slices.IndexFunc(e.gates, func(g gate) bool { return g.Name == name })
	return e.gates[n]
}

// unbroken counts a pass in which a condition held. It starts anew after a gap.
func (e *evaluation) unbroken(k string) Sighting {
	s, ok := e.history[k]
	if !ok || !sameBoot(s.Last, e.now) || s.Last.SinceBoot > e.now.SinceBoot ||
		e.now.Since(s.Last) > max(e.settings.Grace/2, 3*e.settings.Every) {
		s = Sighting{First: e.now}
	}
	return s.addPass(e.now)
}

// heldByName returns the pods that the breaker may hold and whose answer by name is missing or due for renewal, the one
// asked longest ago first. The breaker was closed in the last pass. pinned is the UID or name of the pod that a person
// or a release is about; it is asked first.
func (t *Inventory) heldByName(suspects []*Object, history History, now finding.Timestamp, pinned string) []Pod {
	if _, closed := history["closed/"+Breaker]; !closed || !t.Cluster.OK() {
		return nil
	}
	firsts := make(map[string]finding.Timestamp)
	for _, o := range suspects {
		uid, seen := o.Pod.UID, history.seen(o, now).First
		if old, ok := firsts[uid]; (!ok || seen.SinceBoot < old.SinceBoot) && !t.Runtime.Running[uid] &&
			!hasPod(t.Cluster.Pods, uid) {
			firsts[uid] = seen
		}
	}
	var due []Pod
	for uid := range firsts {
		if pod, unknown := t.nameOf(uid, suspects); unknown == "" {
			due = append(due, pod)
		}
	}
	isPinned := func(p Pod) bool {
		return pinned != "" && (p.UID == pinned || p.Name == pinned || p.Namespace+"/"+p.Name == pinned)
	}
	rank := func(p Pod) int {
		if isPinned(p) {
			return 0
		}
		return 1
	}
	slices.SortFunc(due, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)),
			cmp.Compare(firsts[a.UID].SinceBoot, firsts[b.UID].SinceBoot), cmp.Compare(a.UID, b.UID))
	})
	const atOnce = 20 // each is asked twice in strongLasts, one in a pass, so that an answer is renewed before it expires
	due = due[:min(len(due), atOnce)]
	due = slices.DeleteFunc(due, func(p Pod) bool {
		named := history[namedKey(p.UID)].Named
		renew := strongLasts / 2
		switch {
		case named.Alive: // it closes a gate while it holds
			renew = askAgain / 2
		case isPinned(p):
			renew = askAgain
		}
		return !named.At.IsZero() && sameBoot(named.At, now) && now.Since(named.At) < renew
	})
	slices.SortStableFunc(due, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(history[namedKey(a.UID)].Named.At.SinceBoot,
			history[namedKey(b.UID)].Named.At.SinceBoot))
	})
	return due
}

// askHeldByName asks the apiserver by name for one pod that the breaker may hold, if this pass has asked for none yet.
func (t *Inventory) askHeldByName(ctx context.Context, scan *hostscan.Scan, due []Pod, now finding.Timestamp) {
	if len(due) > 0 && len(t.Named) == 0 {
		t.askByName(ctx, scan, due[0], now)
	}
}
