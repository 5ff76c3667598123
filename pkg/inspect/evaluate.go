package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Evaluate decides for each object whether it is a leftover. It is pure. An object is a leftover if all witnesses
// answered and none knows its pod, all gates are open, and it was seen as the same object often and long enough.
// Otherwise it is a candidate, or unknown if a witness did not answer or could not be trusted. The returned history is
// for the next pass: it holds the objects that kubelet denies, and keeps those that this pass could not check.
func Evaluate(objects []Object, inventory Inventory, history History, s Settings, now finding.Timestamp) (Report,
	History) {
	specs := make(map[Kind]KindSpec)
	ranks := make(map[Kind]int)
	for i, spec := range Specs() {
		specs[spec.Kind], ranks[spec.Kind] = spec, i
	}
	inventory.resolveNames()
	e := evaluation{
		specs: specs, inventory: &inventory, history: history, settings: s, now: now, next: make(History),
		pods:       make(map[string]*runningPod),
		deadLeases: make(map[string]bool),
		answers:    make(map[question]map[string]Answer),
		held:       make(map[string]string),
	}
	orphans := e.orphanAges(objects)
	e.gates = gates(&inventory, s, len(orphans), e.ended(objects, orphans), stuck(orphans, s),
		missingFromList(&inventory, history, now))
	e.noteGates()
	e.keepNamed()
	report := Report{At: now, Objects: make([]Assessment, 0, len(objects)), Gates: []Gate{}, Errors: []Failure{},
		Notes: notes(&inventory)}
	for _, leases := range []bool{true, false} { // the verdict on a lease decides about the network of its sandbox
		for i := range objects {
			if leases == (objects[i].Kind == Lease) {
				a := e.object(&objects[i])
				e.noteDeadLease(a)
				report.Objects = append(report.Objects, a)
			}
		}
	}
	e.onlyOneRuns(report.Objects)
	e.passBreaker(report.Objects)
	e.keepRunning()
	slices.SortStableFunc(report.Objects, func(a, b Assessment) int {
		return cmp.Or(cmp.Compare(ranks[a.Kind], ranks[b.Kind]), cmp.Compare(a.ID, b.ID))
	})
	for _, g := range e.gates {
		report.Gates = append(report.Gates, g.Gate)
	}
	return report, e.next
}

// suspicious reports whether kubelet does not know the pod of o, first seen at first, so that the apiserver has to be
// asked.
func suspicious(o *Object, inventory *Inventory, first finding.Timestamp) bool {
	if o.Foreign != "" || o.Doubt != "" || o.Pod.UID == "" {
		return false
	}
	answer := inventory.kubeletAnswer(o, first)
	if inventory.Kubelet.byName() { // only the apiserver shows which pods have ended
		return !answer.confirms() && !inventory.apiserverAnswer(o, first).confirms()
	}
	return answer == Denies
}

// orphanAges returns the pods that have objects here while no witness that answered knows them, and for how long the
// oldest of these objects has been seen. Report-only and opt-in objects may stay forever, and do not count: if a
// witness is wrong about living pods, they have objects of other kinds too.
func (e *evaluation) orphanAges(objects []Object) map[string]time.Duration {
	ages := make(map[string]time.Duration)
	for i := range objects {
		o := &objects[i]
		first := e.history.seen(o, e.now).First
		if suspicious(o, e.inventory, first) && !e.inventory.apiserverAnswer(o, first).confirms() &&
			e.specs[o.Kind].ReportOnly == "" && !e.specs[o.Kind].OptIn {
			ages[o.Pod.UID] = max(ages[o.Pod.UID], e.now.Since(first))
		}
	}
	return ages
}

// ended counts the orphans that kubelet has ended. Some have only a sandbox and containers left that have ended:
// kubelet's garbage collector removes them every minute, or later if it is busy, restarts or the runtime fails. Others
// still existed when the pass began: see noteRemoved. On a busy node they are many. They are no sign of a wrong
// witness: a living pod has its directory. Most of kubelet's pods must have one, or no orphan is counted.
func (e *evaluation) ended(objects []Object, orphans map[string]time.Duration) int {
	others, directories := make(map[string]bool), make(map[string]bool)
	for i := range objects {
		o := &objects[i]
		if o.Kind == PodDirectory && hasPod(e.inventory.Kubelet.Pods, o.Pod.UID) {
			directories[o.Pod.UID] = true
		}
		if _, orphan := orphans[o.Pod.UID]; !orphan || e.specs[o.Kind].ReportOnly != "" || e.specs[o.Kind].OptIn {
			continue
		}
		if !o.hasEnded() && !e.inventory.Removed[o.Pod.UID] {
			others[o.Pod.UID] = true
		}
	}
	if n := len(directories); n == 0 || 2*n < countPods(e.inventory.Kubelet.Pods) {
		return 0
	}
	return len(orphans) - len(others)
}

// hasEnded reports whether the runtime has ended a sandbox or a container. A lease is no sign of a running pod.
func (o *Object) hasEnded() bool {
	return o.Kind == Lease || o.Kind == Sandbox && o.Facts["state"] == "NOTREADY" ||
		o.Kind == Container && o.Facts["state"] == "EXITED"
}

// stuck counts the orphans that kubelet has not removed within twice the grace period: it cannot remove them.
func stuck(ages map[string]time.Duration, s Settings) int {
	n := 0
	for _, age := range ages {
		if s.Grace > 0 && age > 2*s.Grace {
			n++
		}
	}
	return n
}

// evaluation is one evaluation of all objects.
type evaluation struct {
	specs      map[Kind]KindSpec
	inventory  *Inventory
	history    History
	settings   Settings
	now        finding.Timestamp
	gates      []gate
	next       History
	pods       map[string]*runningPod // suspected ones, by UID
	deadLeases map[string]bool        // IDs of sandboxes whose lease is a leftover
	answers    map[question]map[string]Answer
	held       map[string]string // proofs of objects held only by the breaker, by key
}

// question is the part of an object on which the witnesses' answers depend. A pod has an object in each cgroup
// hierarchy, with the same answers.
type question struct {
	pod                Pod
	sandbox, container string
	kind               Kind // of a lease or a container; they are answered differently from the others
	first              finding.Timestamp
}

// ask returns the witnesses' answers, which are shared and must not be changed.
func (e *evaluation) ask(o *Object, first finding.Timestamp) map[string]Answer {
	q := question{pod: o.Pod, sandbox: o.SandboxID, container: o.ContainerID, first: first}
	if o.Kind == Lease || o.Kind == Container {
		q.kind = o.Kind
	}
	answers, ok := e.answers[q]
	if !ok {
		answers = e.inventory.answers(o, first)
		e.answers[q] = answers
	}
	return answers
}

// set returns answers with one of them changed.
func set(answers map[string]Answer, witness string, answer Answer) map[string]Answer {
	answers = maps.Clone(answers)
	answers[witness] = answer
	return answers
}

func (e *evaluation) object(o *Object) Assessment {
	sighting := e.history.seen(o, e.now)
	a := Assessment{Object: *o, Witnesses: e.ask(o, sighting.First)}
	if a.Verdict, a.Why = e.inUse(o); a.Verdict != "" {
		return a
	}
	if isUnowned(o) {
		sighting = sighting.addPass(e.now)
		e.next[key(o)] = sighting
		a.FirstSeen, a.Passes = sighting.First, sighting.Passes
		a.Verdict, a.Why = e.unowned(o, a.Witnesses, sighting)
		return a
	}
	if e.onlyDeadLease(o) {
		a.Witnesses = set(a.Witnesses, Containerd, Denies+": it has only the lease, which is a leftover itself")
	}
	a.Verdict, a.Why = e.belongs(o, a.Witnesses)
	if a.Verdict != "" {
		if _, known := e.history[key(o)]; known && a.Verdict == Unknown && sighting.Passes > 0 {
			e.next[key(o)] = sighting // this pass could not check it
		}
		return a
	}
	pod := e.running(o.Pod.UID)
	a.Running = pod != nil
	if pod.alive(e.now) {
		a.Verdict, a.Why = Live, pod.Named.Why
		a.Witnesses = set(a.Witnesses, Apiserver, knows("asked by name; its list lacks it"))
		return a
	}
	if why := e.unknownBecause(o); why != "" { // the answer of an untrusted witness does not count
		e.next[key(o)] = sighting
		a.FirstSeen, a.Passes = sighting.First, sighting.Passes
		a.Verdict, a.Why = Unknown, why
		return a
	}
	if why := e.doubtByName(o, a.Witnesses); why != "" {
		if a.Verdict, a.Why = Candidate, why; sighting.Passes > 0 && !e.inventory.Runtime.Running[o.Pod.UID] {
			e.next[key(o)] = sighting // this pass does not count; while it runs, none does
			a.FirstSeen, a.Passes = sighting.First, sighting.Passes
		}
		return a
	}
	if pod != nil {
		pod.count(e.inventory, e.now)
	}
	sighting = sighting.addPass(e.now)
	if a.Witnesses[Apiserver] == Denies {
		sighting = sighting.addDenial(e.inventory.Cluster.At)
	}
	e.next[key(o)] = sighting
	a.FirstSeen, a.Passes = sighting.First, sighting.Passes
	a.Verdict, a.Why = e.proven(o, a.Witnesses, sighting)
	return a
}

// inUse gives the verdict on an object shared by several pods that is in use on the node or may soon be.
func (e *evaluation) inUse(o *Object) (Verdict, string) {
	inUse := e.specs[o.Kind].InUse
	if inUse == nil || o.Foreign != "" || o.Doubt != "" {
		return "", ""
	}
	if o.InUse != "" {
		return Live, o.InUse
	}
	switch k := &e.inventory.Kubelet; {
	case !k.OK():
		return Unknown, "kubelet " + string(e.inventory.kubeletAnswer(o, e.now))
	case k.byName():
		return Unknown, "kubelet's podresources do not show the volumes of its pods"
	}
	if why := inUse(e.inventory, o); why != "" {
		return Live, why
	}
	return "", ""
}

// belongs gives the verdict on an object that a witness knows, or that kubelet did not answer for. Empty: kubelet
// denies it and the apiserver does not know it.
func (e *evaluation) belongs(o *Object, witnesses map[string]Answer) (Verdict, string) {
	switch {
	case o.Foreign != "":
		return Foreign, o.Foreign
	case o.Pod.UID != "" && witnesses[Kubelet].confirms():
		return Live, "kubelet has its pod"
	case o.Pod.UID != "" && witnesses[Apiserver].confirms():
		return Live, "the apiserver has its pod"
	case o.Doubt != "":
		return Unknown, o.Doubt
	case witnesses[Kubelet] != Denies && !(e.inventory.Kubelet.OK() && e.inventory.Kubelet.byName()):
		return Unknown, "kubelet " + string(witnesses[Kubelet])
	}
	return "", ""
}

// proven gives the verdict on an object that kubelet denies and the apiserver does not know.
func (e *evaluation) proven(o *Object, witnesses map[string]Answer, sighting Sighting) (Verdict, string) {
	if o.InUse != "" && o.Kind == Lease {
		return Candidate, "its sandbox is not gone: " + o.InUse
	}
	if o.InUse != "" {
		return Candidate, "it is in use: " + o.InUse
	}
	for _, name := range e.specs[o.Kind].GoneFrom {
		if witnesses[name].confirms() {
			if o.SandboxID == "" {
				return Candidate, fmt.Sprintf("%s still knows its container or pod, which goes first: %s", name,
					witnesses[name])
			}
			return Candidate, name + " still knows its sandbox; removing the sandbox releases it"
		}
	}
	if verdict, why := e.static(o); verdict != "" {
		return verdict, why
	}
	held, missing := e.closedGates(o)
	if witnesses[Apiserver] != Denies {
		missing = append(missing, "the apiserver was "+string(witnesses[Apiserver]))
	}
	missing = append(missing, e.missing(o, sighting)...)
	proof := fmt.Sprintf("no witness knows pod %s; seen in %d passes over %s",
		o.Pod.UID, sighting.Passes, round(e.now.Since(sighting.First)))
	if pod := e.pods[o.Pod.UID]; pod != nil {
		missing = append(missing, pod.missing(e.settings, e.now)...)
		proof += "; it is running, and " + pod.Named.Why
	}
	if len(missing) == 0 && held != "" {
		e.held[key(o)] = proof
	}
	if held != "" {
		missing = append(missing, held)
	}
	if len(missing) > 0 {
		return Candidate, "not yet proven: " + strings.Join(missing, "; ")
	}
	return Leftover, proof
}

// unknownBecause returns the closed gate that makes the verdict unknown.
func (e *evaluation) unknownBecause(o *Object) string {
	for _, g := range e.gates {
		if !g.Open && g.unknown && (!g.network || o.Kind.networked()) {
			return fmt.Sprintf("gate %s is closed: %s", g.Name, g.Why)
		}
	}
	return ""
}

// closedGates lists the closed gates that apply to o. The breaker is returned as held, since another proof can pass it.
func (e *evaluation) closedGates(o *Object) (held string, waits []string) {
	for _, g := range e.gates {
		if g.Open || g.network && !o.Kind.networked() {
			continue
		}
		why := fmt.Sprintf("gate %s is closed: %s", g.Name, g.Why)
		if g.Name == Breaker {
			held = why
		} else {
			waits = append(waits, why)
		}
	}
	return held, waits
}

// missing returns the missing conditions of the sightings.
func (e *evaluation) missing(o *Object, sighting Sighting) []string {
	var missing []string
	if sighting.Passes < e.settings.Passes {
		missing = append(missing, fmt.Sprintf("seen in %d of %d passes", sighting.Passes, e.settings.Passes))
	}
	// Kubelet gives the containers their termination grace period, which must not be cut short.
	periods, spacing := patience(o, e.inventory, e.settings)
	grace := max(periods*max(e.settings.Grace, e.inventory.Runtime.Grace[o.Pod.UID]), e.specs[o.Kind].MinAge)
	if left := grace - e.now.Since(sighting.First); left > 0 {
		missing = append(missing, fmt.Sprintf("%s of %s remaining", roundUp(left), round(grace)))
	}
	n := len(sighting.Denials)
	if n > 0 && sighting.Denials[n-1].Since(sighting.Denials[0]) < spacing {
		missing = append(missing, fmt.Sprintf("the apiserver must deny it twice, at least %s apart", round(spacing)))
	}
	return missing
}

// roundUp never returns 0s for a remaining time.
func roundUp(d time.Duration) time.Duration { return (d + time.Second - 1).Truncate(time.Second) }

// static gives the verdict on objects of static pods: only kubelet knows those, and only once it has read their
// manifests. Their UIDs have 32 digits, unless the manifest sets one; then the runtime may still show it.
func (e *evaluation) static(o *Object) (Verdict, string) {
	source := e.inventory.Runtime.Pods[o.Pod.UID].Source
	isStatic := len(o.Pod.UID) == 32 || source != "" && source != "api"
	switch static := e.inventory.Static; {
	case static.UIDs[o.Pod.UID] != "":
		return Live, fmt.Sprintf("the manifest %s sets this UID for its pod", static.UIDs[o.Pod.UID])
	case !isStatic:
		return "", ""
	case e.inventory.Kubelet.byName():
		return Unknown, "a static pod, whose UID only kubelet's /pods would show"
	case source != "" && source != "api" && source != "file":
		return Unknown, "a static pod from " + source + ", a source that the agent cannot read"
	case !static.Asked:
		return Unknown, "a static pod; the manifests were not read"
	case static.Err != nil:
		return Unknown, fmt.Sprintf("a static pod; read the manifests: %v", static.Err)
	case len(static.Missing) > 0:
		return Unknown, fmt.Sprintf("a static pod; kubelet has no pod for the manifest of %s yet", static.Missing[0])
	}
	return "", ""
}
