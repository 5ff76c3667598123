// Package verdict decides which objects are leftovers. It is pure: the result depends on the objects, the answers of the
// witnesses and the history only.
package verdict

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// Evaluate decides for each object whether it is a leftover. It is pure. An object is a leftover if all witnesses
// answered and none knows its pod, all gates are open, and it was seen as the same object often and long enough.
// Otherwise it is a candidate, or unknown if a witness did not answer or could not be trusted. The returned history is
// for the next pass: it holds the objects that kubelet denies, and keeps those that this pass could not check.
func Evaluate(objects []object.Object, inventory witness.Inventory, history object.History, s object.Settings,
	now finding.Timestamp) (object.Report,
	object.History) {
	specs := make(map[object.Kind]kinds.Spec)
	ranks := make(map[object.Kind]int)
	for i, spec := range kinds.Specs() {
		specs[spec.Kind], ranks[spec.Kind] = spec, i
	}
	inventory.ResolveNames()
	e := evaluation{
		specs: specs, inventory: &inventory, history: history, settings: s, now: now, next: make(object.History),
		pods:       make(map[string]*runningPod),
		deadLeases: make(map[string]bool),
		answers:    make(map[question]map[string]object.Answer),
		held:       make(map[string]string),
	}
	orphans := e.orphanAges(objects)
	e.gates = gates(&inventory, s, len(orphans), e.ended(objects, orphans), stuck(orphans, s),
		missingFromList(&inventory, history, now))
	e.noteGates()
	e.keepNamed()
	report := object.Report{At: now, Objects: make([]object.Assessment, 0, len(objects)), Gates: []object.Gate{},
		Errors: []object.Failure{},
		Notes:  notes(&inventory)}
	for _, leases := range []bool{true, false} { // the verdict on a lease decides about the network of its sandbox
		for i := range objects {
			if leases == (objects[i].Kind == object.Lease) {
				a := e.object(&objects[i])
				e.noteDeadLease(a)
				report.Objects = append(report.Objects, a)
			}
		}
	}
	e.onlyOneRuns(report.Objects)
	e.passBreaker(report.Objects)
	e.keepRunning()
	slices.SortStableFunc(report.Objects, func(a, b object.Assessment) int {
		return cmp.Or(cmp.Compare(ranks[a.Kind], ranks[b.Kind]), cmp.Compare(a.ID, b.ID))
	})
	for _, g := range e.gates {
		report.Gates = append(report.Gates, g.Gate)
	}
	return report, e.next
}

// evaluation is one evaluation of all objects.
type evaluation struct {
	specs      map[object.Kind]kinds.Spec
	inventory  *witness.Inventory
	history    object.History
	settings   object.Settings
	now        finding.Timestamp
	gates      []gate
	next       object.History
	pods       map[string]*runningPod // suspected ones, by UID
	deadLeases map[string]bool        // IDs of sandboxes whose lease is a leftover
	answers    map[question]map[string]object.Answer
	held       map[string]string // proofs of objects held only by the breaker, by key
}

// question is the part of an object on which the witnesses' answers depend. A pod has an object in each cgroup
// hierarchy, with the same answers.
type question struct {
	pod                object.Pod
	sandbox, container string
	kind               object.Kind // of a lease or a container; they are answered differently from the others
	first              finding.Timestamp
}

// ask returns the witnesses' answers, which are shared and must not be changed.
func (e *evaluation) ask(o *object.Object, first finding.Timestamp) map[string]object.Answer {
	q := question{pod: o.Pod, sandbox: o.SandboxID, container: o.ContainerID, first: first}
	if o.Kind == object.Lease || o.Kind == object.Container {
		q.kind = o.Kind
	}
	answers, ok := e.answers[q]
	if !ok {
		answers = e.inventory.Answers(o, first)
		e.answers[q] = answers
	}
	return answers
}

// set returns answers with one of them changed.
func set(answers map[string]object.Answer, witness string, answer object.Answer) map[string]object.Answer {
	answers = maps.Clone(answers)
	answers[witness] = answer
	return answers
}

func (e *evaluation) object(o *object.Object) object.Assessment {
	sighting := e.history.Seen(o, e.now)
	a := object.Assessment{Object: *o, Witnesses: e.ask(o, sighting.First)}
	if a.Verdict, a.Why = e.inUse(o); a.Verdict != "" {
		return a
	}
	if object.IsUnowned(o) {
		sighting = sighting.AddPass(e.now)
		e.next[object.Key(o)] = sighting
		a.FirstSeen, a.Passes = sighting.First, sighting.Passes
		a.Verdict, a.Why = e.unowned(o, a.Witnesses, sighting)
		return a
	}
	if e.onlyDeadLease(o) {
		a.Witnesses = set(a.Witnesses, object.Containerd,
			object.Denies+": it has only the lease, which is a leftover itself")
	}
	a.Verdict, a.Why = e.belongs(o, a.Witnesses)
	if a.Verdict != "" {
		if _, known := e.history[object.Key(o)]; known && a.Verdict == object.Unknown && sighting.Passes > 0 {
			e.next[object.Key(o)] = sighting // this pass could not check it
		}
		return a
	}
	pod := e.running(o.Pod.UID)
	a.Running = pod != nil
	if pod.alive(e.now) {
		a.Verdict, a.Why = object.Live, pod.Named.Why
		a.Witnesses = set(a.Witnesses, object.Apiserver, object.Known("asked by name; its list lacks it"))
		return a
	}
	if why := e.unknownBecause(o); why != "" { // the answer of an untrusted witness does not count
		e.next[object.Key(o)] = sighting
		a.FirstSeen, a.Passes = sighting.First, sighting.Passes
		a.Verdict, a.Why = object.Unknown, why
		return a
	}
	if why := e.doubtByName(o, a.Witnesses); why != "" {
		if a.Verdict, a.Why = object.Candidate, why; sighting.Passes > 0 && !e.inventory.Runtime.Running[o.Pod.UID] {
			e.next[object.Key(o)] = sighting // this pass does not count; while it runs, none does
			a.FirstSeen, a.Passes = sighting.First, sighting.Passes
		}
		return a
	}
	if pod != nil {
		pod.count(e.inventory, e.now)
	}
	sighting = sighting.AddPass(e.now)
	if a.Witnesses[object.Apiserver] == object.Denies {
		sighting = sighting.AddDenial(e.inventory.Cluster.At)
	}
	e.next[object.Key(o)] = sighting
	a.FirstSeen, a.Passes = sighting.First, sighting.Passes
	a.Verdict, a.Why = e.proven(o, a.Witnesses, sighting)
	return a
}

// inUse gives the verdict on an object shared by several pods that is in use on the node or may soon be.
func (e *evaluation) inUse(o *object.Object) (object.Verdict, string) {
	inUse := e.specs[o.Kind].InUse
	if inUse == nil || o.Foreign != "" || o.Doubt != "" {
		return "", ""
	}
	if o.InUse != "" {
		return object.Live, o.InUse
	}
	switch k := &e.inventory.Kubelet; {
	case !k.OK():
		return object.Unknown, "kubelet " + string(e.inventory.KubeletAnswer(o, e.now))
	case k.ByName():
		return object.Unknown, "kubelet's podresources do not show the volumes of its pods"
	}
	if why := inUse(e.inventory, o); why != "" {
		return object.Live, why
	}
	return "", ""
}

// belongs gives the verdict on an object that a witness knows, or that kubelet did not answer for. Empty: kubelet
// denies it and the apiserver does not know it.
func (e *evaluation) belongs(o *object.Object, witnesses map[string]object.Answer) (object.Verdict, string) {
	switch {
	case o.Foreign != "":
		return object.Foreign, o.Foreign
	case o.Pod.UID != "" && witnesses[object.Kubelet].Confirms():
		return object.Live, "kubelet has its pod"
	case o.Pod.UID != "" && witnesses[object.Apiserver].Confirms():
		return object.Live, "the apiserver has its pod"
	case o.Doubt != "":
		return object.Unknown, o.Doubt
	case witnesses[object.Kubelet] != object.Denies && !(e.inventory.Kubelet.OK() && e.inventory.Kubelet.ByName()):
		return object.Unknown, "kubelet " + string(witnesses[object.Kubelet])
	}
	return "", ""
}

// proven gives the verdict on an object that kubelet denies and the apiserver does not know.
func (e *evaluation) proven(o *object.Object, witnesses map[string]object.Answer,
	sighting object.Sighting) (object.Verdict, string) {
	if o.InUse != "" && o.Kind == object.Lease {
		return object.Candidate, "its sandbox is not gone: " + o.InUse
	}
	if o.InUse != "" {
		return object.Candidate, "it is in use: " + o.InUse
	}
	for _, name := range e.specs[o.Kind].GoneFrom {
		if witnesses[name].Confirms() {
			if o.SandboxID == "" {
				return object.Candidate, fmt.Sprintf("%s still knows its container or pod, which goes first: %s", name,
					witnesses[name])
			}
			return object.Candidate, name + " still knows its sandbox; removing the sandbox releases it"
		}
	}
	if verdict, why := e.static(o); verdict != "" {
		return verdict, why
	}
	held, missing := e.closedGates(o)
	if witnesses[object.Apiserver] != object.Denies {
		missing = append(missing, "the apiserver was "+string(witnesses[object.Apiserver]))
	}
	missing = append(missing, e.missing(o, sighting)...)
	proof := fmt.Sprintf("no witness knows pod %s; seen in %d passes over %s",
		o.Pod.UID, sighting.Passes, object.Round(e.now.Since(sighting.First)))
	if pod := e.pods[o.Pod.UID]; pod != nil {
		missing = append(missing, pod.missing(e.settings, e.now)...)
		proof += "; it is running, and " + pod.Named.Why
	}
	if len(missing) == 0 && held != "" {
		e.held[object.Key(o)] = proof
	}
	if held != "" {
		missing = append(missing, held)
	}
	if len(missing) > 0 {
		return object.Candidate, "not yet proven: " + strings.Join(missing, "; ")
	}
	return object.Leftover, proof
}

// unknownBecause returns the closed gate that makes the verdict unknown.
func (e *evaluation) unknownBecause(o *object.Object) string {
	for _, g := range e.gates {
		if !g.Open && g.unknown && (!g.network || o.Kind.Networked()) {
			return fmt.Sprintf("gate %s is closed: %s", g.Name, g.Why)
		}
	}
	return ""
}

// closedGates lists the closed gates that apply to o. The breaker is returned as held, since another proof can pass it.
func (e *evaluation) closedGates(o *object.Object) (held string, waits []string) {
	for _, g := range e.gates {
		if g.Open || g.network && !o.Kind.Networked() {
			continue
		}
		why := fmt.Sprintf("gate %s is closed: %s", g.Name, g.Why)
		if g.Name == object.Breaker {
			held = why
		} else {
			waits = append(waits, why)
		}
	}
	return held, waits
}

// missing returns the missing conditions of the sightings.
func (e *evaluation) missing(o *object.Object, sighting object.Sighting) []string {
	var missing []string
	if sighting.Passes < e.settings.Passes {
		missing = append(missing, fmt.Sprintf("seen in %d of %d passes", sighting.Passes, e.settings.Passes))
	}
	// Kubelet gives the containers their termination grace period, which must not be cut short.
	periods, spacing := Patience(o, e.inventory, e.settings)
	grace := max(periods*max(e.settings.Grace, e.inventory.Runtime.Grace[o.Pod.UID]), e.specs[o.Kind].MinAge)
	if left := grace - e.now.Since(sighting.First); left > 0 {
		missing = append(missing, fmt.Sprintf("%s of %s remaining", roundUp(left), object.Round(grace)))
	}
	n := len(sighting.Denials)
	if n > 0 && sighting.Denials[n-1].Since(sighting.Denials[0]) < spacing {
		missing = append(missing, fmt.Sprintf("the apiserver must deny it twice, at least %s apart", object.Round(spacing)))
	}
	return missing
}

// roundUp never returns 0s for a remaining time.
func roundUp(d time.Duration) time.Duration { return (d + time.Second - 1).Truncate(time.Second) }

// static gives the verdict on objects of static pods: only kubelet knows those, and only once it has read their
// manifests. Their UIDs have 32 digits, unless the manifest sets one; then the runtime may still show it.
func (e *evaluation) static(o *object.Object) (object.Verdict, string) {
	source := e.inventory.Runtime.Pods[o.Pod.UID].Source
	isStatic := len(o.Pod.UID) == 32 || source != "" && source != "api"
	switch static := e.inventory.Static; {
	case static.UIDs[o.Pod.UID] != "":
		return object.Live, fmt.Sprintf("the manifest %s sets this UID for its pod", static.UIDs[o.Pod.UID])
	case !isStatic:
		return "", ""
	case e.inventory.Kubelet.ByName():
		return object.Unknown, "a static pod, whose UID only kubelet's /pods would show"
	case source != "" && source != "api" && source != "file":
		return object.Unknown, "a static pod from " + source + ", a source that the agent cannot read"
	case !static.Asked:
		return object.Unknown, "a static pod; the manifests were not read"
	case static.Err != nil:
		return object.Unknown, fmt.Sprintf("a static pod; read the manifests: %v", static.Err)
	case len(static.Missing) > 0:
		return object.Unknown, fmt.Sprintf("a static pod; kubelet has no pod for the manifest of %s yet", static.Missing[0])
	}
	return "", ""
}

// notes tells which proof this pass could give, and how to get a better one.
func notes(t *witness.Inventory) []string {
	if !t.Kubelet.ByName() {
		return nil
	}
	return []string{fmt.Sprintf("kubelet refuses its /pods, and its podresources are asked instead: proof takes at least "+
		"twice as long, and nothing of a static pod, or of one with a container that runs, is proven. For the full proof "+
		"the agent needs the right to read nodes/pods and nodes/metrics. Refused: %v", t.Kubelet.Refused)}
}
