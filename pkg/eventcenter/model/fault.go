package model

import (
	"cmp"
	"encoding/json"
	"iter"
	"maps"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Limits of the detectors' faults that the center remembers per node. The journal has all of them.
const (
	maxDetectors  = 32
	maxOfDetector = 200            // faults and ended faults, per detector
	endKept       = 24 * time.Hour // an older report that arrives later does not restore the fault
)

// Fault is the latest word on a fault of a node. The agent's snapshots and a detector do not affect each other's.
type Fault struct {
	event.Fault // without its content once it has ended
	Stamp       // of the agent's event

	At       time.Time `json:"at,omitzero"`       // time of the detector's report, by its clock, but never after Received
	Received time.Time `json:"received,omitzero"` // by the center's clock; the time to live starts here
	Of       string    `json:"of,omitempty"`      // ID of the detector's event

	Episode
}

// Episode is a fault from the receipt of its start to the receipt of its end.
type Episode struct {
	Found    time.Time        `json:"found,omitzero"`
	Began    time.Time        `json:"began,omitzero"`  // RaisedAt at its start: with another it is a new one
	FoundFor string           `json:"for,omitempty"`   // its reason at its start
	FoundAs  finding.Severity `json:"as,omitempty"`    // its severity at its start
	Level    finding.Severity `json:"level,omitempty"` // its severity by the latest event; snapshots do not change it
	Repaired bool             `json:"repaired,omitempty"`
}

// latest returns the stamp of the latest event about a fault. One that was never there is gone.
func (f *Fault) latest() Stamp {
	if f == nil {
		return Stamp{Gone: true}
	}
	return f.Stamp
}

// ends returns when a detector's fault ends unless it is reported again.
func (f *Fault) ends() time.Time { return f.Received.Add(f.TTL()) }

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
	reported := &Fault{Fault: f, At: event.Earlier(e.Time, r.Received), Received: r.Received, Of: r.ID}
	m.fault(m.changing(r), e.Type, reported, true, r.Received)
}

// of returns the faults that a detector reports; empty: the agent.
func (n *Node) of(detector string) map[string]*Fault {
	if detector == "" {
		return n.Faults
	}
	return n.Foreign[detector]
}

// fault applies an event about a fault, unless it is late.
func (m *Model) fault(n *Node, t event.Type, f *Fault, current bool, at time.Time) {
	key := f.Key()
	last, room := n.of(f.Detector)[key], len(n.Faults) < maxActive
	if f.Detector == "" {
		current = current && n.newer(f.Stamp, last.latest())
	} else {
		if f.RaisedAt.IsZero() {
			f.RaisedAt = f.At
			if !last.latest().Gone {
				f.RaisedAt = last.RaisedAt
			}
		}
		current = last == nil || !f.At.Before(last.At)
		room = last != nil || n.hasRoom(f.Detector, f.Received)
	}
	switch {
	case !current:
		m.late++
	case last == nil && !room:
		m.dropped++
	default:
		m.setFault(n, key, t, f, at)
		return
	}
	if known := !last.latest().Gone && last.Began.Equal(f.RaisedAt); t == event.FaultRaised && !known {
		f.begin(at)
		m.count(n, Change{What: Late, Fault: f})
	}
}

func (f *Fault) begin(at time.Time) {
	f.Episode = Episode{Found: at, Began: f.RaisedAt, FoundFor: f.Reason, FoundAs: f.Severity, Level: f.Severity}
}

// setFault makes f the latest word about a fault, from the time at.
func (m *Model) setFault(n *Node, key string, t event.Type, f *Fault, at time.Time) {
	all := n.of(f.Detector)
	if all == nil {
		all = map[string]*Fault{}
		if f.Detector == "" {
			n.Faults = all
		} else {
			if n.Foreign == nil {
				n.Foreign = map[string]map[string]*Fault{}
			}
			n.Foreign[f.Detector] = all
		}
	}
	last := all[key]
	open := !last.latest().Gone
	again := open && last.Began.Equal(f.RaisedAt)
	f.Gone = t == event.FaultCleared || f.OneShot
	if open && (f.Gone || !again) {
		m.ended(n, last, at)
	}
	switch {
	case again && !f.Gone:
		f.Episode = last.Episode
		f.Level = f.Severity
	case t != event.FaultCleared && !again:
		f.begin(at)
		m.count(n, Change{What: Found, Fault: f})
	}
	if f.Gone {
		f.Fault, f.Episode = event.Fault{}, Episode{} // its key is enough
	}
	all[key] = f
	n.settle(t, key, f.Gone)
}

// hasRoom reports whether a detector may add a fault. It makes room by removing old ended faults, then the oldest.
func (n *Node) hasRoom(detector string, now time.Time) bool {
	for name, all := range n.Foreign {
		maps.DeleteFunc(all, func(_ string, f *Fault) bool { return f.Gone && now.Sub(f.Received) > endKept })
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

// Active yields the active faults of a node with their keys: the agent's and the detectors'.
func (n *Node) Active() iter.Seq2[string, *Fault] {
	return func(yield func(string, *Fault) bool) {
		for key, f := range n.Faults {
			if !f.Gone && !yield(key, f) {
				return
			}
		}
		for _, all := range n.Foreign {
			for key, f := range all {
				if !f.Gone && !yield(key, f) {
					return
				}
			}
		}
	}
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
	key := e.Data.Key()
	last := known.of(e.Data.Detector)[key]
	if last.latest().Gone {
		return
	}
	n := m.changing(r)
	if last.Of != e.Of {
		m.infer(n, event.FaultRaised, last.Fault, r.ID, e.Time, false)
		return
	}
	ended := &Fault{Fault: e.Data, At: last.At, Received: last.Received, Of: last.Of}
	m.setFault(n, key, event.FaultCleared, ended, r.Received)
}

// ended counts the end of a fault.
func (m *Model) ended(n *Node, f *Fault, at time.Time) {
	what := Cleared
	if f.Repaired {
		what = Repaired
	}
	m.count(n, Change{What: what, Fault: f, Took: at.Sub(f.Found)})
}
