package verdict

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// Nominate returns the objects that no local witness knows.
func Nominate(objects []object.Object, inventory *witness.Inventory, history object.History,
	now finding.Timestamp) []*object.Object {
	var suspects []*object.Object
	for i := range objects {
		if suspicious(&objects[i], inventory, history.Seen(&objects[i], now).First) {
			suspects = append(suspects, &objects[i])
		}
	}
	return suspects
}

// suspicious reports whether kubelet does not know the pod of o, first seen at first, so that the apiserver has to be
// asked.
func suspicious(o *object.Object, inventory *witness.Inventory, first finding.Timestamp) bool {
	if o.Foreign != "" || o.Doubt != "" || o.Pod.UID == "" {
		return false
	}
	answer := inventory.KubeletAnswer(o, first)
	if inventory.Kubelet.ByName() { // only the apiserver shows which pods have ended
		return !answer.Confirms() && !inventory.ApiserverAnswer(o, first).Confirms()
	}
	return answer == object.Denies
}

// orphanAges returns the pods that have objects here while no witness that answered knows them, and for how long the
// oldest of these objects has been seen. Report-only and opt-in objects may stay forever, and do not count: if a
// witness is wrong about living pods, they have objects of other kinds too.
func (e *evaluation) orphanAges(objects []object.Object) map[string]time.Duration {
	ages := make(map[string]time.Duration)
	for i := range objects {
		o := &objects[i]
		first := e.history.Seen(o, e.now).First
		if suspicious(o, e.inventory, first) && !e.inventory.ApiserverAnswer(o, first).Confirms() &&
			e.specs[o.Kind].ReportOnly == "" && !e.specs[o.Kind].OptIn {
			ages[o.Pod.UID] = max(ages[o.Pod.UID], e.now.Since(first))
		}
	}
	return ages
}

// ended counts the orphans that kubelet has ended. Some have only ended sandboxes and containers left:
// kubelet's garbage collector removes them every minute, or later if it is busy, restarts or the runtime fails. Others
// still existed when the pass began: see noteRemoved. On a busy node they are many. They are no sign of a wrong
// witness: a living pod has its directory. Most of kubelet's pods must have one, or no orphan is counted.
func (e *evaluation) ended(objects []object.Object, orphans map[string]time.Duration) int {
	others, directories := make(map[string]bool), make(map[string]bool)
	for i := range objects {
		o := &objects[i]
		if o.Kind == object.PodDirectory && witness.HasPod(e.inventory.Kubelet.Pods, o.Pod.UID) {
			directories[o.Pod.UID] = true
		}
		if _, orphan := orphans[o.Pod.UID]; !orphan || e.specs[o.Kind].ReportOnly != "" || e.specs[o.Kind].OptIn {
			continue
		}
		if !o.HasEnded() && !e.inventory.Removed[o.Pod.UID] {
			others[o.Pod.UID] = true
		}
	}
	if n := len(directories); n == 0 || 2*n < witness.CountPods(e.inventory.Kubelet.Pods) {
		return 0
	}
	return len(orphans) - len(others)
}

// stuck counts the orphans that kubelet has not removed within twice the grace period: it cannot remove them.
func stuck(ages map[string]time.Duration, s object.Settings) int {
	n := 0
	for _, age := range ages {
		if s.Grace > 0 && age > 2*s.Grace {
			n++
		}
	}
	return n
}

// The weaker witness needs multiples of the grace period, for a pod with a name and for one without.
const (
	namedPatience    = 2
	namelessPatience = 3
)

// Patience returns for how many grace periods an object must be seen, and how far apart the apiserver's first and last
// denial must be.
func Patience(o *object.Object, t *witness.Inventory, s object.Settings) (periods, spacing time.Duration) {
	switch {
	case !t.Kubelet.ByName():
		return 1, s.ListSpacing
	case o.Pod.Name == "":
		return namelessPatience, max(s.ListSpacing, s.Grace)
	}
	return namedPatience, max(s.ListSpacing, s.Grace)
}
