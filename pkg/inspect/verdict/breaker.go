package verdict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// The gate against mass orphaning protects living pods that a witness wrongly denies. If a node was away and its pods
// were removed by force, many real leftovers close it, and would forever. So a pod without running processes may pass
// by a second, stronger proof (see strongerProof). A release takes one such pod per pass: see release.Plan.

// sourcesKey is the key in the history of the time since when kubelet has had its pods. No kind of object has such keys.
const sourcesKey = "open/kubelet-sources"

// mayRun returns why a process of the object's pod may be running.
func mayRun(o *object.Object) string {
	switch {
	case o.Kind == object.Sandbox && o.Facts["state"] != "NOTREADY", o.Kind == object.Container &&
		o.Facts["state"] != "EXITED":
		return fmt.Sprintf("its %s %s is %s", o.Kind, o.ID, cmp.Or(o.Facts["state"], "in an unknown state"))
	case o.Kind == object.Process || o.Kind == object.Shim || o.Kind == object.Task || o.Kind == object.ContainerdContainer:
		return fmt.Sprintf("it has the %s %s", o.Kind, o.ID)
	case o.Kind == object.Cgroup && o.Facts["processes"] != "0":
		return fmt.Sprintf("its cgroup %s has processes", o.ID)
	case o.InUse != "":
		return fmt.Sprintf("its %s %s is in use: %s", o.Kind, o.ID, o.InUse)
	}
	return ""
}

// passBreaker makes leftovers of the objects held only by the breaker if the stronger proof of their pod is complete;
// to the others it adds the missing parts of that proof.
func (e *evaluation) passBreaker(all []object.Assessment) {
	proofs := make(map[string][]string)
	for i := range all {
		o := &all[i]
		proof, held := e.held[object.Key(&o.Object)]
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
		o.Verdict, o.PassesBreaker = object.Leftover, true
		o.Why = fmt.Sprintf("%s; gate %s is closed, and the stronger proof passes it: nothing of the pod runs, kubelet "+
			"has had its pods since %s, %s", proof, object.Breaker,
			e.next[sourcesKey].First.Wall.UTC().Format(time.TimeOnly+"Z"),
			e.next[object.NamedKey(o.Pod.UID)].Named.Why)
	}
}

// strongerProof returns what is missing to take a pod through the breaker: no process of it runs, kubelet has had its
// pods for the whole grace period, and two lists and an answer by name deny it. None of its objects may be new or in
// doubt.
func (e *evaluation) strongerProof(uid string, all []object.Assessment) (missing []string) {
	// the kinds that show a running process
	for _, kind := range []object.Kind{object.Sandbox, object.Container, object.ContainerdContainer, object.Process,
		object.Shim, object.Task, object.Cgroup} {
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
			"seen in %d passes", object.Round(grace), object.Round(since), sources.Passes))
	}
	nameless := e.nameless(uid, all)
	switch named := e.next[object.NamedKey(uid)].Named; {
	case nameless != "":
		missing = append(missing, nameless)
	case named.At.IsZero():
		missing = append(missing, "the apiserver must be asked for it by name")
	case !object.SameBoot(named.At, e.now) || e.now.Since(named.At) >= object.StrongLasts:
		missing = append(missing, "the apiserver was not asked for it by name recently")
	case !named.Gone:
		missing = append(missing, "asking the apiserver for it by name proved nothing: "+named.Why)
	}
	slices.Sort(missing)
	return slices.Compact(missing)
}

// notStrong returns why one object speaks against the stronger proof of its pod.
func (e *evaluation) notStrong(o *object.Assessment, grace time.Duration) (missing []string) {
	if why := mayRun(&o.Object); why != "" {
		missing = append(missing, why)
	}
	switch {
	case e.specs[o.Kind].ReportOnly != "" || kinds.Of(o.Kind).Minor():
	case o.Verdict == object.Unknown || o.Verdict == object.Live || o.Verdict == object.Foreign:
		missing = append(missing, fmt.Sprintf("its %s %s is %s", o.Kind, o.ID, o.Verdict))
	case o.FirstSeen.IsZero() || e.now.Since(o.FirstSeen) < grace:
		missing = append(missing, fmt.Sprintf("its %s %s is new: nothing of it may be", o.Kind, o.ID))
	}
	if _, held := e.held[object.Key(&o.Object)]; !held {
		return missing
	}
	denials := e.next[object.Key(&o.Object)].Denials
	if n := len(denials); n == 0 || denials[n-1].Since(denials[0]) < e.settings.RunningSpacing {
		missing = append(missing, fmt.Sprintf("the apiserver must deny it twice, at least %s apart",
			object.Round(e.settings.RunningSpacing)))
	}
	return missing
}

// nameless returns why the apiserver cannot be asked for a pod by name.
func (e *evaluation) nameless(uid string, all []object.Assessment) string {
	var objects []*object.Object
	for i := range all {
		objects = append(objects, &all[i].Object)
	}
	_, unknown := e.inventory.NameOf(uid, objects)
	return unknown
}

// keepNamed keeps the apiserver's answers about pods that the breaker may hold, while they count. An answer that a pod
// exists by name while the list lacks it also counts in passes in which other gates hold the pod.
func (e *evaluation) keepNamed() {
	if _, closed := e.history[object.GateKey(object.Breaker)]; !closed && e.gate(object.Breaker).Open {
		return
	}
	for uid, answer := range e.inventory.HeldAnswers(e.history) {
		if object.SameBoot(answer.At, e.now) && e.now.Since(answer.At) < object.StrongLasts &&
			!e.inventory.Runtime.Running[uid] {
			e.next[object.NamedKey(uid)] = object.Sighting{First: e.now, Last: e.now, Named: answer}
		}
	}
}

// restGap is more passes than an inspection skips at a time while a gate stays closed.
const restGap = 6

// noteGates stores since when gates are closed, and since when kubelet has had its pods while the breaker was closed. A
// daemon that restarts again and again causes a pass each time, before its uptime has opened its gate.
func (e *evaluation) noteGates() {
	for i := range e.gates {
		g := &e.gates[i]
		if g.Open {
			continue
		}
		key := object.GateKey(g.Name)
		s := e.unbroken(key, max(restGap*e.settings.Every, e.uptimeOf(g.Name)+2*e.settings.Every))
		g.Since, g.Opens = s.First, g.opens()
		e.next[key] = s
	}
	if e.gate(object.Breaker).Open || !e.inventory.Cluster.OK() || !e.gate("kubelet-heard").Open ||
		!e.gate("kubelet-sources").Open || !e.gate(object.KubeletUptime).Open {
		return
	}
	s := e.unbroken(sourcesKey, max(e.settings.Grace/2, 3*e.settings.Every))
	if k := &e.inventory.Kubelet; k.AgeErr != nil || e.now.SinceBoot-k.Age > s.First.SinceBoot {
		s = object.Sighting{First: e.now, Last: e.now, Passes: 1} // a new process has to show it anew
	}
	e.next[sourcesKey] = s
}

// uptimeOf is the uptime that opens a gate; 0: another one.
func (e *evaluation) uptimeOf(gate string) time.Duration {
	switch gate {
	case object.KubeletUptime:
		return e.settings.KubeletUptime
	case object.RuntimeUptime:
		return e.settings.RuntimeUptime
	}
	return 0
}

func (e *evaluation) gate(name string) gate {
	n := slices.IndexFunc(e.gates, func(g gate) bool { return g.Name == name })
	return e.gates[n]
}

// unbroken counts a pass in which a condition held. It starts anew after a longer gap between passes than most.
func (e *evaluation) unbroken(k string, most time.Duration) object.Sighting {
	s, ok := e.history[k]
	if !ok || !object.SameBoot(s.Last, e.now) || s.Last.SinceBoot > e.now.SinceBoot || e.now.Since(s.Last) > most {
		s = object.Sighting{First: e.now}
	}
	return s.AddPass(e.now)
}
