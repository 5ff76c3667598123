package condition

import (
	"encoding/json"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
)

// record is the stored memory of one condition.
type record struct {
	Status  finding.Status    `json:"status"`
	Since   finding.Timestamp `json:"since"`   // when the tracker changed it
	Shown   time.Time         `json:"shown"`   // lastTransitionTime: Since, or the value on the Node before us
	Written bool              `json:"written"` // the Node may carry it because of us: we may remove it

	// Fresh: the status has not changed since its first report, and has not been compared with the Node, which may have
	// a better time.
	Fresh bool `json:"fresh,omitempty"`
}

// ledger knows when each condition really changed. The tracker knows it too, but may have lost its memory, and does not
// know about conditions that several checks share. It is pure.
type ledger struct {
	started finding.Timestamp // when this agent started
	records map[string]record
	sighted map[string]bool // reported in this run
	adopted map[string]corev1.NodeCondition
	dirty   map[string]bool // to be stored
}

func newLedger(started finding.Timestamp) *ledger {
	return &ledger{started: started, records: map[string]record{}, sighted: map[string]bool{}, dirty: map[string]bool{}}
}

// restore reads the records of an earlier run. It drops unreadable ones: the agent reads the Node anyway.
func (l *ledger) restore(store report.Store, log *slog.Logger) {
	if store == nil {
		return
	}
	err := store.ForEach(func(name string, value []byte) error {
		var r record
		if err := json.Unmarshal(value, &r); err != nil {
			log.Warn("skip an unreadable stored condition", "condition", name, "err", err)
			l.dirty[name] = true // so that store removes it
			return nil
		}
		l.records[name] = r
		return nil
	})
	if err != nil {
		log.Warn("read stored conditions failed", "err", err)
	}
}

// observe takes a verdict into account.
func (l *ledger) observe(k *kind, v report.Verdict) {
	r, known := l.records[k.name]
	first := !l.sighted[k.name]
	l.sighted[k.name] = true
	switch {
	case !known:
		r = l.adopt(k, record{Status: v.Status, Since: v.Since, Shown: v.Since.Wall, Fresh: true})
	case r.Status != v.Status:
		r.Status, r.Since, r.Shown, r.Fresh = v.Status, v.Since, v.Since.Wall, false
	case same(r.Since, v.Since):
		return
	case v.Sole && !(first && l.inThisRun(v.Since)):
		// The same status as before, but with an interruption: it changed and changed back while we could not see or
		// report it.
		r.Since, r.Shown, r.Fresh = v.Since, v.Since.Wall, false
	default:
		// The first observation of a tracker without memory, or of another check that shares this condition.
		r.Since = v.Since
	}
	l.records[k.name], l.dirty[k.name] = r, true
}

// adoptAll takes over the conditions of the Node: if the status is the same as ours, the Node's time counts.
func (l *ledger) adoptAll(kinds []*kind, conditions []corev1.NodeCondition) {
	l.adopted = map[string]corev1.NodeCondition{}
	for _, c := range conditions {
		l.adopted[string(c.Type)] = c
	}
	for _, k := range kinds {
		if r, ok := l.records[k.name]; ok && r.Fresh {
			l.records[k.name], l.dirty[k.name] = l.adopt(k, r), true
		}
	}
}

// adopt takes the time of the Node's condition, once it is known, if the status is the same.
func (l *ledger) adopt(k *kind, r record) record {
	if l.adopted == nil {
		return r
	}
	r.Fresh = false
	c, ok := l.adopted[k.name]
	if ok && c.Status == k.truth(r.Status) && !c.LastTransitionTime.IsZero() {
		r.Shown = c.LastTransitionTime.Time
	}
	return r
}

// written notes whether the Node may carry a condition because of us.
func (l *ledger) written(name string, is bool) {
	if r, ok := l.records[name]; ok && r.Written != is {
		r.Written = is
		l.records[name], l.dirty[name] = r, true
	}
}

// forget drops a condition that no longer belongs to us.
func (l *ledger) forget(name string) {
	delete(l.records, name)
	l.dirty[name] = true
}

// store stores the changed records.
func (l *ledger) store(behind *report.WriteBehind) {
	for name := range l.dirty {
		data, err := json.Marshal(l.records[name])
		if _, ok := l.records[name]; !ok || err != nil { // a time beyond the year 9999 is not storable
			behind.Delete(name)
			continue
		}
		behind.Put(name, data)
	}
	clear(l.dirty)
}

// inThisRun reports whether a moment lies after the start of this agent.
func (l *ledger) inThisRun(s finding.Timestamp) bool {
	return l.started.Boot != "" && s.Boot == l.started.Boot && s.SinceBoot >= l.started.SinceBoot
}

// same compares moments; a stored time.Time has lost its location and monotonic clock.
func same(a, b finding.Timestamp) bool {
	return a.Boot == b.Boot && a.SinceBoot == b.SinceBoot && a.Wall.Equal(b.Wall)
}
