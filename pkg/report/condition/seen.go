package condition

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeagent/nodeagent/pkg/report"
)

// sight is the last seen state of the Node, whoever wrote it.
type sight struct {
	at         time.Time // zero: never seen
	uid        types.UID
	conditions map[string]corev1.NodeCondition

	compared time.Time // with the believed state
	fresh    bool      // not yet compared
	owner    types.UID // UID of the Node at the comparison
}

// Saw implements report.NodeReporter.
func (r *Reporter) Saw(node *corev1.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.sight
	s.at, s.uid, s.fresh, s.conditions = time.Now(), node.UID, true, map[string]corev1.NodeCondition{}
	for _, c := range node.Status.Conditions {
		s.conditions[string(c.Type)] = c
	}
	report.Wake(r.changed)
}

// adoptSeen takes over the last seen state of the Node, and returns when to do so again. Changes by others then show up as
// differences from the believed state. A new Node of the same name has no conditions of ours.
func (r *Reporter) adoptSeen(now time.Time) (again time.Time) {
	s := &r.sight
	if !s.fresh || r.ledger.adopted == nil {
		return time.Time{}
	}
	if r.another(s) {
		r.config.Log.Warn("the Node was replaced by another one of the same name: writing all again", "uid", s.uid)
		r.pace.refreshAt = now
	} else if due := later(r.pace.wrote.Add(report.Echo), s.compared.Add(r.compareEvery())); now.Before(due) {
		return due
	}
	s.fresh, s.compared, s.owner = false, now, s.uid
	if r.config.Owner == nil {
		clear(r.shown)
		for name, c := range s.conditions {
			r.shown[name] = c
		}
	}
	return time.Time{}
}

func (r *Reporter) another(s *sight) bool {
	if r.config.Owner != nil {
		return r.config.Owner(s.uid)
	}
	return s.owner != "" && s.owner != s.uid
}

func (r *Reporter) compareEvery() time.Duration {
	if r.bad {
		return report.CompareFaulty
	}
	return report.CompareCalm
}

// repeat returns when to send everything again unchanged, because it cannot be read; zero: not before it changes.
func (r *Reporter) repeat() time.Time {
	if r.config.Owner == nil || !r.bad || r.sent.IsZero() || !r.pace.retryAt.IsZero() {
		return time.Time{}
	}
	return r.pace.wrote.Add(report.CompareFaulty)
}

// Seen implements report.NodeReporter.
func (r *Reporter) Seen() (at time.Time, shows string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sight.at.IsZero() || r.config.Owner != nil {
		return time.Time{}, ""
	}
	there := 0
	var differs []string
	for _, k := range r.kinds {
		if !r.ledger.records[k.name].Written {
			continue
		}
		have, ok := r.sight.conditions[k.name]
		switch want := k.truth(r.ledger.records[k.name].Status); {
		case !ok:
			differs = append(differs, k.name+" is missing")
		case have.Status != want:
			differs = append(differs, fmt.Sprintf("%s is %s, not %s", k.name, have.Status, want))
		default:
			there++
		}
	}
	slices.Sort(differs)
	return r.sight.at, strings.Join(append([]string{fmt.Sprintf("%d conditions as believed", there)}, differs...), ", ")
}

// Moved returns when a condition changed to a status, as written to the Node. It is false for another status.
func (r *Reporter) Moved(name string, status corev1.ConditionStatus) (time.Time, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k, known := r.byName[name], r.ledger.records[name]
	if k == nil || r.ledger.adopted == nil || known.Shown.IsZero() || k.truth(known.Status) != status {
		return time.Time{}, false
	}
	return known.Shown, true
}

var _ report.NodeReporter = (*Reporter)(nil)
