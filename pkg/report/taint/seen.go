package taint

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeagent/nodeagent/pkg/report"
)

// sight is the last seen state of the Node, whoever wrote it.
type sight struct {
	at    time.Time // zero: never seen
	uid   types.UID
	taint *corev1.Taint // of our key

	compared time.Time
	fresh    bool      // not yet compared
	owner    types.UID // UID of the Node at the comparison
}

// Saw implements report.NodeReporter.
func (r *Reporter) Saw(node *corev1.Node) {
	r.mu.Lock()
	s := &r.sight
	s.at, s.uid, s.fresh, s.taint = time.Now(), node.UID, true, find(node.Spec.Taints, r.config.Key)
	r.mu.Unlock()
	report.Wake(r.changed)
}

// adoptSeen takes over the last seen state of the Node, and returns when to do so again. If no fault asks for a taint and
// none is ours, there is no comparison: a taint of our key that somebody else sets is theirs.
func (r *Reporter) adoptSeen(now time.Time) (again time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.sight
	if !s.fresh || !r.known || r.wish.taint == nil && r.mine.Key == "" {
		return time.Time{}
	}
	another := s.owner != "" && s.owner != s.uid
	due := s.compared.Add(report.CompareFaulty)
	if echo := r.wroteAt.Add(report.Echo); echo.After(due) {
		due = echo
	}
	if !another && now.Before(due) {
		return due
	}
	s.fresh, s.compared, s.owner = false, now, s.uid
	if !sameTaint(r.shown, s.taint) {
		r.config.Log.Warn("another client has changed the taint of this node", "taint", text(s.taint), "was", text(r.shown))
	}
	r.shown = s.taint
	return time.Time{}
}

// Seen implements report.NodeReporter.
func (r *Reporter) Seen() (at time.Time, shows string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sight.at, text(r.sight.taint)
}

func text(t *corev1.Taint) string {
	if t == nil {
		return "no taint"
	}
	return t.ToString()
}

var _ report.NodeReporter = (*Reporter)(nil)
