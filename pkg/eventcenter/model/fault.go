package model

import (
	"cmp"
	"encoding/json"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// Limits of the detectors' faults that the center remembers per node. The journal has all of them.
const (
	maxDetectors  = 32
	maxOfDetector = 200            // faults and ended faults, per detector
	endKept       = 24 * time.Hour // an older report that arrives later does not restore the fault
	maxGrace      = time.Hour      // for a detector to report again after the center was away
)

// Fault is the latest report of a fault, by the node's agent or by a detector beside it. These do not affect each
// other's faults.
type Fault struct {
	event.Fault           // only its key is needed once it has ended
	Stamp                 // of the agent's event
	At          time.Time `json:"at,omitzero"`       // of the detector's report, by its clock, but never after Received
	Received    time.Time `json:"received,omitzero"` // by the center's clock; the time to live starts here
	Of          string    `json:"of,omitempty"`      // ID of the detector's event
}

// ends returns when a detector's fault ends unless it is reported again.
func (f *Fault) ends() time.Time { return f.Received.Add(f.TTL()) }

// of returns the faults of a detector; without a name, those of the agent.
func (n *Node) of(detector string) map[string]*Fault {
	if detector == "" {
		return n.Faults
	}
	return n.Foreign[detector]
}

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
	m.putFault(m.changing(r), detector, e.Type, reported)
}

// putFault applies a report of a fault by a detector, or by the agent.
func (m *Model) putFault(n *Node, detector string, t event.Type, f *Fault) {
	key, all := f.Key(), n.of(detector)
	last := cmp.Or(all[key], &Fault{Stamp: Stamp{Gone: true}})
	late := f.At.Before(last.At)
	if detector == "" {
		late = n.older(f.Stamp, last.Stamp)
	} else if f.RaisedAt.IsZero() {
		f.RaisedAt = f.At
		if !last.Gone {
			f.RaisedAt = last.RaisedAt
		}
	}
	switch {
	case late:
		m.late++
		n.Day.history(t, f.Fault)
		return
	case all[key] == nil && !n.hasRoom(detector, f.Received):
		m.dropped++
		n.Day.history(t, f.Fault)
		return
	}
	n.Day.change(t, f.Fault, m.day.Through)
	if f.Gone = t == event.FaultCleared || f.OneShot; f.Gone {
		f.Fault = event.Fault{}
	}
	if all = n.of(detector); all == nil {
		all = map[string]*Fault{}
		if detector == "" {
			n.Faults = all
		} else {
			n.Foreign[detector] = all
		}
	}
	all[key] = f
}

// hasRoom reports whether the agent or a detector may add a fault. For a detector it makes room by removing old ended
// faults, then the oldest.
func (n *Node) hasRoom(detector string, now time.Time) bool {
	if detector == "" {
		return len(n.Faults) < maxActive
	}
	if n.Foreign == nil {
		n.Foreign = map[string]map[string]*Fault{}
	}
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

// active yields the faults of a node with their keys: the agent's and the detectors'.
func (n *Node) active() iter.Seq2[string, *event.Fault] {
	return func(yield func(string, *event.Fault) bool) {
		for _, all := range slices.AppendSeq([]map[string]*Fault{n.Faults}, maps.Values(n.Foreign)) {
			for key, f := range all {
				if !f.Gone && !yield(key, &f.Fault) {
					return
				}
			}
		}
	}
}

// has reports whether a fault of a detector is active; without a name, of the agent.
func (n *Node) has(key, detector string) bool {
	last := n.of(detector)[key]
	return last != nil && !last.Gone
}

// Expired returns the ends of faults that their detectors have not reported again in time. A detector could report only
// since the center is ready: it has a full time to live from then on, or an hour. If the same end is created twice, the
// second is a duplicate.
func (m *Model) Expired(now, ready time.Time) (ends []journal.Event) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, n := range m.nodes {
		for _, all := range n.Foreign {
			for key, f := range all {
				if f.Gone || now.Before(f.ends()) || now.Before(ready.Add(min(f.TTL(), maxGrace))) {
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
	*last = Fault{At: last.At, Received: last.Received, Of: last.Of, Stamp: Stamp{Gone: true}}
}
