package follow

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/record"
)

// awaitFor is how long after the end of a pod another one replaces it: it bounds the number of kept acts.
const awaitFor = 10 * time.Minute

// place is the place of a pod that another one takes: the name in its StatefulSet, the node of its DaemonSet. Other pods
// have none.
func place(t *record.Timeline) string {
	at := t.Name
	if t.OwnerKind == "DaemonSet" {
		at = t.Node
	}
	if at == "" || t.OwnerKind != "StatefulSet" && t.OwnerKind != "DaemonSet" {
		return ""
	}
	return t.Namespace + "/" + t.OwnerKind + "/" + t.OwnerName + "/" + at
}

// await keeps the deletion of a pod that another one may replace.
func (f *Follower) await(a *Act) {
	if at := place(&a.Timeline); a.Timeline.Awaits && at != "" {
		f.leave[at] = a
	}
}

// awaits reports whether another pod may still replace a deleted one.
func awaits(t *record.Timeline, now time.Time) bool {
	gone := t.At(record.Gone)
	return t.Awaits && gone.Known() && now.Sub(gone.Arrival) < awaitFor
}

// replaces opens the act of an upgrade if a pod takes the place of a ready one: from the request of the old pod's
// deletion until the new one is ready. A pod that exists before that request is no replacement.
func (f *Follower) replaces(o observation, uid string) {
	t := f.timeline(o, record.Upgrade, uid)
	t.Node = f.share(o.p.Spec.NodeName)
	at := place(t)
	a := f.leave[at]
	if at == "" || a == nil || a.Timeline.UID == uid || o.p.CreationTimestamp.Time.Before(a.Timeline.At(record.DeleteRequested).Time) {
		return
	}
	delete(f.leave, at)
	old := &a.Timeline
	old.Awaits, a.changed = false, true
	t.Replaces, t.Grace, t.Node = old.UID, old.Grace, ""
	t.Set(record.ChangeAccepted, old.At(record.DeleteRequested))
	t.Set(record.ChangeNoticed, old.At(record.KillNoticed))
	t.Set(record.OldEnded, old.At(record.ContainersEnded))
	t.Set(record.OldEnded, old.At(record.Gone))
	for _, x := range f.acts[uid] { // the node of a DaemonSet's pod is known later than the pod
		t.Set(record.Created, x.Timeline.At(record.Created))
	}
	t.Set(record.Created, o.mark(o.p.CreationTimestamp, record.APIServer))
	f.add(&Act{Timeline: *t, changed: true})
}
