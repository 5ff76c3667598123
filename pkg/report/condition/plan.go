package condition

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
)

// haste is how soon a difference between the believed state and the Node must be written.
type haste int

const (
	none   haste = iota
	calm         // within the spread: it isolates no node and frees none
	detail       // within a second, but with a rate limit: a new reason or message of a fault
	prompt       // within a second: a fault began or ended
)

// plan is the intended state of the Node, and how soon to write it.
type plan struct {
	conditions []corev1.NodeCondition
	removed    []string
	haste      haste
	bad        bool // there is a fault
	held       bool // some check still has time for its first conclusive observation
}

// plan compares the believed state with the Node. now decides whether the grace for first observations is over.
func (r *Reporter) plan(now time.Time) plan {
	var p plan
	for _, k := range r.kinds {
		v, known := r.verdicts[k.name]
		if !known {
			continue
		}
		if r.held(k, v, now) {
			p.held = true
			continue
		}
		r.ledger.observe(k, v)
		if v.Status != finding.StatusNotApplicable {
			want := r.want(k, v)
			p.add(k, want, r.shown)
			if have, ok := r.shown[k.name]; ok && sameWords(want, have) {
				// an earlier agent, whose memory is lost, wrote it: we keep it up to date now
				r.ledger.written(k.name, true)
			}
		}
	}
	if r.ledger.adopted != nil {
		p.remove(r)
	}
	if r.uncertain {
		p.haste = prompt
	}
	return p
}

// held reports whether a verdict must not be written yet. After a start without memory a check has some time for its
// first conclusive observation: if a True or False on the Node became Unknown and returned, lastTransitionTime would
// change twice.
func (r *Reporter) held(k *kind, v report.Verdict, now time.Time) bool {
	if v.Status != finding.StatusUnknown || !v.Blank || !now.Before(r.graceEnd) {
		return false
	}
	known, ok := r.ledger.records[k.name]
	return !ok || known.Status != finding.StatusUnknown
}

func (r *Reporter) want(k *kind, v report.Verdict) corev1.NodeCondition {
	moved := r.ledger.records[k.name].Shown
	if r.config.Moved != nil {
		if at, ok := r.config.Moved(k.name, k.truth(v.Status)); ok {
			moved = at
		}
	}
	return corev1.NodeCondition{
		Type: corev1.NodeConditionType(k.name), Status: k.truth(v.Status), Reason: v.Reason, Message: v.Message,
		// The wire format has whole seconds.
		LastTransitionTime: metav1.NewTime(moved.Truncate(time.Second)),
	}
}

func sameWords(a, b corev1.NodeCondition) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

func (p *plan) add(k *kind, want corev1.NodeCondition, shown map[string]corev1.NodeCondition) {
	p.conditions = append(p.conditions, want)
	p.bad = p.bad || want.Status == k.bad()
	have, ok := shown[k.name]
	p.haste = max(p.haste, k.hasten(want, have, ok))
}

// hasten returns how soon a difference must be written.
func (k *kind) hasten(want, have corev1.NodeCondition, shown bool) haste {
	isBad, wasBad := want.Status == k.bad(), shown && have.Status == k.bad()
	switch {
	case isBad && !wasBad, wasBad && want.Status == k.good():
		return prompt
	case want.Status != have.Status:
		return calm
	case !want.LastTransitionTime.Time.Equal(have.LastTransitionTime.Truncate(time.Second)):
		if isBad {
			return prompt
		}
		return calm
	case want.Reason == have.Reason && want.Message == have.Message:
		return none
	case isBad:
		return detail
	case want.Status == corev1.ConditionUnknown && want.Reason == have.Reason:
		return none // error texts differ each time; the refresh is soon enough
	}
	return calm
}

// remove names the conditions to remove from the Node: written by us, shown, and not wanted any more.
func (p *plan) remove(r *Reporter) {
	wanted := map[string]bool{}
	for _, c := range p.conditions {
		wanted[string(c.Type)] = true
	}
	for _, name := range slices.Sorted(maps.Keys(r.ledger.records)) {
		known := r.ledger.records[name]
		kind, configured := r.byName[name]
		gone := !configured || known.Status == finding.StatusNotApplicable
		if wanted[name] || !gone || !known.Written {
			continue
		}
		have, shown := r.shown[name]
		if !shown && !r.uncertain {
			r.removed(name)
			continue
		}
		p.removed = append(p.removed, name)
		urgency := calm
		if configured && have.Status == kind.bad() {
			urgency = prompt
		}
		p.haste = max(p.haste, urgency)
	}
}

// removed notes that a condition is no longer on the Node.
func (r *Reporter) removed(name string) {
	delete(r.shown, name)
	if _, configured := r.byName[name]; configured {
		r.ledger.written(name, false)
	} else {
		r.ledger.forget(name)
	}
}
