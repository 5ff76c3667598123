package model

import (
	"cmp"
	"encoding/json"
	"iter"
	"maps"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// Limits of the detectors' faults that the center remembers per node. The journal has all of them.
const (
	maxDetectors  = 32
	maxOfDetector = 200            // faults and ended faults, per detector
	endKept       = 24 * time.Hour // an older report that arrives later does not restore the fault
)

// Foreign is a detector's latest report on a fault. It and the agents' snapshots do not affect each other.
type Foreign struct {
	event.Fault           // only its key is needed once it has ended
	At          time.Time `json:"at"`       // time of the report, by the detector's clock, but never after Received
	Received    time.Time `json:"received"` // by the center's clock; the time to live starts here
	Of          string    `json:"of"`       // ID of the event
	Gone        bool      `json:"gone,omitempty"`
}

// ends returns when the fault ends unless it is reported again.
func (f *Foreign) ends() time.Time { return f.Received.Add(f.TTL()) }

// foreign applies an event without a stream: only detectors' faults change the state.
func (m *Model) foreign(r journal.Record) {
	_, _, detector, _ := event.ReadSource(r.Source)
	if detector == "" {
		return
	}
	e, ok := read(r)
	f, isFault := e.Data.(event.Fault)
	if !ok || !isFault {
		return
	}
	f.Detector = detector
	m.putForeign(m.changing(r), e.Type, &Foreign{Fault: f, At: event.Earlier(e.Time, r.Received), Received: r.Received, Of: r.ID})
}

func (m *Model) putForeign(n *Node, t event.Type, f *Foreign) {
	detector, key := f.Detector, f.Key()
	last := n.Foreign[detector][key]
	if f.RaisedAt.IsZero() {
		f.RaisedAt = f.At
		if last != nil && !last.Gone {
			f.RaisedAt = last.RaisedAt
		}
	}
	switch {
	case last != nil && f.At.Before(last.At):
		m.late++
		n.Day.history(t, f.Fault)
		return
	case last == nil && !n.hasRoom(detector, f.Received):
		m.dropped++
		n.Day.history(t, f.Fault)
		return
	}
	n.Day.change(t, f.Fault, m.day.Through)
	if f.Gone = t == event.FaultCleared || f.OneShot; f.Gone {
		f.Fault = event.Fault{}
	}
	if n.Foreign == nil {
		n.Foreign = map[string]map[string]*Foreign{}
	}
	if n.Foreign[detector] == nil {
		n.Foreign[detector] = map[string]*Foreign{}
	}
	n.Foreign[detector][key] = f
}

// hasRoom reports whether a detector may add a fault. It makes room by removing old ended faults, then the oldest.
func (n *Node) hasRoom(detector string, now time.Time) bool {
	for name, all := range n.Foreign {
		maps.DeleteFunc(all, func(_ string, f *Foreign) bool { return f.Gone && now.Sub(f.Received) > endKept })
		if len(all) == 0 {
			delete(n.Foreign, name)
		}
	}
	all := n.Foreign[detector]
	if len(all) < maxOfDetector {
		return all != nil || len(n.Foreign) < maxDetectors
	}
	oldest := ""
	for key, f := range all {
		if o := all[oldest]; f.Gone && (o == nil || cmp.Or(f.Received.Compare(o.Received), cmp.Compare(key, oldest)) < 0) {
			oldest = key
		}
	}
	delete(all, oldest)
	return oldest != ""
}

// active yields the faults of a node with their keys: the agent's and the detectors'.
func (n *Node) active() iter.Seq2[string, *event.Fault] {
	return func(yield func(string, *event.Fault) bool) {
		for key, f := range n.Faults {
			if !f.Gone && !yield(key, &f.Fault) {
				return
			}
		}
		for _, all := range n.Foreign {
			for key, f := range all {
				if !f.Gone && !yield(key, &f.Fault) {
					return
				}
			}
		}
	}
}

// has reports whether a fault of a detector is active; without a detector, of the agent.
func (n *Node) has(key, detector string) bool {
	if detector != "" {
		last := n.Foreign[detector][key]
		return last != nil && !last.Gone
	}
	last := n.Faults[key]
	return last != nil && !last.Gone
}

// Expired returns the ends of faults that their detectors have not reported again in time. If the same end is created
// twice, the second is a duplicate.
func (m *Model) Expired(now time.Time) (ends []journal.Event) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, n := range m.nodes {
		for _, all := range n.Foreign {
			for key, f := range all {
				if f.Gone || now.Before(f.ends()) {
					continue
				}
				e, err := Own{Cluster: n.Cluster, Node: n.Name, ID: DerivedID("expired", n.Cluster, n.Name, key, f.Of),
					Type: event.FaultCleared, Check: f.Check, Reason: f.Reason, Subject: f.Subject, Severity: f.Severity,
					Time: f.ends().UTC(), Data: f.Fault, Of: f.Of}.Event()
				if err != nil {
					continue // plain data of our own types: cannot fail
				}
				ends = append(ends, e)
			}
		}
	}
	return ends
}

// expired ends a detector's fault that was not reported again in time. If a report came first, the fault is raised.
func (m *Model) expired(r journal.Record, known *Node) {
	var e struct {
		Time time.Time
		Of   string `json:"inferredof"`
		Data event.Fault
	}
	if known == nil || json.Unmarshal(r.JSON, &e) != nil {
		return
	}
	last := known.Foreign[e.Data.Detector][e.Data.Key()]
	if last == nil || last.Gone {
		return
	}
	n := m.changing(r)
	if last.Of != e.Of {
		i := inference{m: m, n: n, of: r.ID, at: e.Time}
		i.fault(event.FaultRaised, last.Fault)
		return
	}
	n.Day.change(event.FaultCleared, last.Fault, m.day.Through)
	*last = Foreign{At: last.At, Received: last.Received, Of: last.Of, Gone: true}
}
