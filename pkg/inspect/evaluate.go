package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Evaluate says of each object whether it is a leftover. It is pure. An object is one if all witnesses were heard and
// none knows its pod, all gates are open, and it was seen often and long enough as the same object; everything less
// is a candidate, or unknown where a witness could not be heard or believed. The history that it returns is the one
// for the next pass; it holds the objects that kubelet denies, and keeps those of which nothing could be learnt this
// time.
func Evaluate(objects []Object, truth Inventory, history History, s Settings, now finding.Timestamp) (Report, History) {
	j := evaluation{
		truth: &truth, history: history, settings: s, now: now, next: make(History), pods: make(map[string]*runningPod),
		deadLeases: make(map[string]bool),
	}
	orphans := orphanAges(objects, &truth, history, now)
	j.gates = gates(&truth, s, len(orphans), stuck(orphans, s), contrary(&truth, history, now))
	report := Report{At: now, Objects: make([]Assessment, 0, len(objects)), Gates: []Gate{}, Errors: []Failure{}}
	for _, leases := range []bool{true, false} { // what is said of a lease decides on the network of its sandbox
		for i := range objects {
			if leases == (objects[i].Kind == Lease) {
				judged := j.object(&objects[i])
				j.notesDeadLease(judged)
				report.Objects = append(report.Objects, judged)
			}
		}
	}
	j.onlyOneRuns(report.Objects)
	j.remember()
	slices.SortStableFunc(report.Objects, func(a, b Assessment) int {
		return cmp.Or(cmp.Compare(rank(a.Kind), rank(b.Kind)), cmp.Compare(a.ID, b.ID))
	})
	for _, g := range j.gates {
		report.Gates = append(report.Gates, g.Gate)
	}
	return report, j.next
}

// rank orders kinds by when they are released.
func rank(kind Kind) int { return slices.Index(Kinds(), kind) }

// suspicious reports whether nobody on this node knows o, so that it is worth asking the apiserver.
func suspicious(o *Object, truth *Inventory) bool {
	return o.Foreign == "" && o.Doubt == "" && o.Pod.UID != "" && truth.askedKubelet(o) == Denies
}

// orphanAges finds the pods that have objects here while no witness that was heard knows them, and for how long the
// oldest of these objects has been seen.
func orphanAges(objects []Object, truth *Inventory, history History, now finding.Timestamp) map[string]time.Duration {
	ages := make(map[string]time.Duration)
	for i := range objects {
		o := &objects[i]
		first := history.sighting(o, now).First
		if suspicious(o, truth) && !truth.askedApiserver(o, first).confirms() {
			ages[o.Pod.UID] = max(ages[o.Pod.UID], now.Since(first))
		}
	}
	return ages
}

// stuck counts the orphans of which kubelet had twice the grace period to get rid: if it is still at it, it cannot.
func stuck(ages map[string]time.Duration, s Settings) int {
	n := 0
	for _, age := range ages {
		if s.Grace > 0 && age > 2*s.Grace {
			n++
		}
	}
	return n
}

// evaluation is one judgement of all objects.
type evaluation struct {
	truth      *Inventory
	history    History
	settings   Settings
	now        finding.Timestamp
	gates      []gate
	next       History
	pods       map[string]*runningPod // suspected ones, by UID
	deadLeases map[string]bool        // IDs of sandboxes whose lease is a leftover
}

func (j *evaluation) object(o *Object) Assessment {
	sighting := j.history.sighting(o, j.now)
	judged := Assessment{Object: *o, Witnesses: j.truth.answers(o, sighting.First)}
	if isUnowned(o) {
		sighting = sighting.seen(j.now)
		j.next[key(o)] = sighting
		judged.FirstSeen, judged.Passes = sighting.First, sighting.Passes
		judged.Verdict, judged.Why = j.unowned(o, judged.Witnesses, sighting)
		return judged
	}
	if j.onlyDeadLease(o) {
		judged.Witnesses[Containerd] = Denies + ": it has only the lease, which is a leftover itself"
	}
	judged.Verdict, judged.Why = j.belongs(o, judged.Witnesses)
	if judged.Verdict != "" {
		if _, known := j.history[key(o)]; known && judged.Verdict == Unknown && sighting.Passes > 0 {
			j.next[key(o)] = sighting // nothing was learnt
		}
		return judged
	}
	pod := j.running(o.Pod.UID)
	judged.Running = pod != nil
	if pod.alive(j.now) {
		judged.Verdict, judged.Why = Live, pod.Named.Why
		judged.Witnesses[Apiserver] = knows("asked by name; its list lacks it")
		return judged
	}
	if why := j.unheard(o); why != "" { // what a witness says that cannot be believed does not count
		j.next[key(o)] = sighting
		judged.FirstSeen, judged.Passes = sighting.First, sighting.Passes
		judged.Verdict, judged.Why = Unknown, why
		return judged
	}
	if pod != nil {
		pod.count(j.truth, j.now)
	}
	sighting = sighting.seen(j.now)
	if judged.Witnesses[Apiserver] == Denies {
		sighting = sighting.denied(j.truth.Cluster.At)
	}
	j.next[key(o)] = sighting
	judged.FirstSeen, judged.Passes = sighting.First, sighting.Passes
	judged.Verdict, judged.Why = j.proven(o, judged.Witnesses, sighting)
	return judged
}

// belongs gives the verdict on what no witness denies, or on what could not be asked of kubelet. Empty: kubelet
// denies it and the apiserver does not know it.
func (j *evaluation) belongs(o *Object, witnesses map[string]Answer) (Verdict, string) {
	switch {
	case o.Foreign != "":
		return Foreign, o.Foreign
	case o.Pod.UID != "" && witnesses[Kubelet].confirms():
		return Live, "kubelet has its pod"
	case o.Pod.UID != "" && witnesses[Apiserver].confirms():
		return Live, "the apiserver has its pod"
	case o.Doubt != "":
		return Unknown, o.Doubt
	case witnesses[Kubelet] != Denies:
		return Unknown, "kubelet " + string(witnesses[Kubelet])
	}
	return "", ""
}

// proven gives the verdict on what kubelet denies and the apiserver does not know.
func (j *evaluation) proven(o *Object, witnesses map[string]Answer, sighting Sighting) (Verdict, string) {
	if o.Carried != "" {
		return Candidate, "its sandbox is not gone: " + o.Carried
	}
	if needsSandboxGone(o.Kind) {
		for _, name := range []string{Runtime, Containerd} {
			if witnesses[name].confirms() {
				return Candidate, name + " still knows its sandbox; removing that releases it"
			}
		}
	}
	if verdict, why := j.static(o); verdict != "" {
		return verdict, why
	}
	missing := j.waits(o)
	if witnesses[Apiserver] != Denies {
		missing = append(missing, "the apiserver was "+string(witnesses[Apiserver]))
	}
	missing = append(missing, j.missing(o, sighting)...)
	proof := fmt.Sprintf("no witness knows pod %s; seen in %d passes over %s",
		o.Pod.UID, sighting.Passes, round(j.now.Since(sighting.First)))
	if pod := j.pods[o.Pod.UID]; pod != nil {
		missing = append(missing, pod.missing(j.settings, j.now)...)
		proof += "; it runs, and " + pod.Named.Why
	}
	if len(missing) > 0 {
		return Candidate, "not yet proven: " + strings.Join(missing, "; ")
	}
	return Leftover, proof
}

// unheard says which closed gate makes it impossible to know.
func (j *evaluation) unheard(o *Object) string {
	for _, g := range j.gates {
		if !g.Open && g.unknown && (!g.network || networked(o.Kind)) {
			return fmt.Sprintf("gate %s is closed: %s", g.Name, g.Why)
		}
	}
	return ""
}

// waits lists the closed gates that are only a matter of time.
func (j *evaluation) waits(o *Object) []string {
	var waits []string
	for _, g := range j.gates {
		if !g.Open && (!g.network || networked(o.Kind)) {
			waits = append(waits, fmt.Sprintf("gate %s is closed: %s", g.Name, g.Why))
		}
	}
	return waits
}

// missing says what of the sightings is still missing.
func (j *evaluation) missing(o *Object, sighting Sighting) []string {
	var missing []string
	if sighting.Passes < j.settings.Passes {
		missing = append(missing, fmt.Sprintf("seen in %d of %d passes", sighting.Passes, j.settings.Passes))
	}
	// Kubelet gives the containers their own grace to end, which nothing may cut short.
	grace := max(j.settings.Grace, j.truth.Runtime.Grace[o.Pod.UID])
	if left := grace - j.now.Since(sighting.First); left > 0 {
		missing = append(missing, fmt.Sprintf("%s of %s to go", roundUp(left), round(grace)))
	}
	n := len(sighting.Denials)
	if n > 0 && sighting.Denials[n-1].Since(sighting.Denials[0]) < j.settings.ListSpacing {
		missing = append(missing, fmt.Sprintf("the apiserver must deny it twice, %s apart",
			round(j.settings.ListSpacing)))
	}
	return missing
}

// roundUp never says "0s to go".
func roundUp(d time.Duration) time.Duration { return (d + time.Second - 1).Truncate(time.Second) }

// static judges what belongs to a static pod: kubelet alone knows those, and only while it has read their manifests.
// Their UIDs are 32 digits, unless the manifest carries one; then the runtime may still tell.
func (j *evaluation) static(o *Object) (Verdict, string) {
	source := j.truth.Runtime.Pods[o.Pod.UID].Source
	isStatic := len(o.Pod.UID) == 32 || source != "" && source != "api"
	switch static := j.truth.Static; {
	case static.UIDs[o.Pod.UID] != "":
		return Live, fmt.Sprintf("the manifest %s gives its pod this UID", static.UIDs[o.Pod.UID])
	case !isStatic:
		return "", ""
	case source != "" && source != "api" && source != "file":
		return Unknown, "a static pod from " + source + ", which cannot be read here"
	case !static.Asked:
		return Unknown, "a static pod; the manifests were not read"
	case static.Err != nil:
		return Unknown, fmt.Sprintf("a static pod; the manifests: %v", static.Err)
	case len(static.Missing) > 0:
		return Unknown, fmt.Sprintf("a static pod; kubelet has no pod for the manifest of %s yet", static.Missing[0])
	}
	return "", ""
}
