package model

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// snapshot is one part of a list of everything active on a node.
type snapshot = event.Snapshot

// inferred is an event that the center creates, because it follows from another. Like any event, it changes the state
// when it is in the journal, unless a later one has made it untrue.
type inferred struct {
	journal.Event
	Snapshot bool `json:",omitempty"` // from a snapshot: the next one decides anew
}

// snapshot collects the parts of a snapshot. With the last part, it infers the events that make the node's state match
// it.
func (m *Model) snapshot(n *Node, e event.Event, part snapshot) (current bool) {
	asOf, err := strconv.ParseUint(part.AsOf, 10, 64)
	if err != nil || asOf < n.AsOf || asOf < n.PartsAsOf || part.Part < 1 || part.Part > maxParts {
		return false
	}
	n.Stopped = false
	if asOf != n.PartsAsOf || n.Parts == nil {
		n.Parts, n.PartsAsOf = map[int]snapshot{}, asOf
	}
	n.Parts[part.Part] = part
	whole := snapshot{}
	for i := 1; ; i++ {
		p, ok := n.Parts[i]
		if !ok {
			return true // more parts will come
		}
		whole.Faults, whole.Leftovers = append(whole.Faults, p.Faults...), append(whole.Leftovers, p.Leftovers...)
		whole.Unknown = append(whole.Unknown, p.Unknown...)
		if p.End {
			whole.PodsEnded = p.PodsEnded
			break
		}
	}
	n.Parts, n.PartsAsOf, n.AsOf = nil, 0, asOf
	m.count(n, Change{What: PodsEnded, Stream: n.Stream, Pods: whole.PodsEnded})
	maps.DeleteFunc(n.Pending, func(_ string, p inferred) bool { return p.Snapshot })
	m.compareFaults(n, whole, e.ID(), e.Time)
	m.compareLeftovers(n, whole, e.ID(), e.Time)
	return true
}

func (m *Model) compareFaults(n *Node, whole snapshot, of string, at time.Time) {
	listed := map[string]event.Fault{}
	for _, f := range whole.Faults {
		if !f.OneShot && len(listed) < maxActive {
			listed[f.Key()] = f
		}
	}
	for key, last := range n.Faults {
		f, there := listed[key]
		newer := last.Stream == n.Stream && last.Sequence > n.AsOf
		switch {
		case newer:
		case there && !last.Gone:
			last.Fault, last.Stamp = f, Stamp{Stream: n.Stream, Sequence: n.AsOf}
		case there:
			continue
		case last.Gone:
			delete(n.Faults, key)
		case !slices.Contains(whole.Unknown, last.Check):
			m.infer(n, event.FaultCleared, last.Fault, of, at, true)
		}
		delete(listed, key)
	}
	for _, f := range listed {
		m.infer(n, event.FaultRaised, f, of, at, true)
	}
}

func (m *Model) compareLeftovers(n *Node, whole snapshot, of string, at time.Time) {
	listed := map[string]event.Activity{}
	for _, a := range whole.Leftovers {
		if len(listed) < maxActive {
			listed[leftoverKey(a)] = a
		}
	}
	for key, last := range n.Leftovers {
		a, there := listed[key]
		newer := last.Stream == n.Stream && last.Sequence > n.AsOf
		switch {
		case newer:
		case there && !last.Gone:
			last.Activity, last.Stamp = a, Stamp{Stream: n.Stream, Sequence: n.AsOf}
		case there:
			continue
		case last.Gone:
			delete(n.Leftovers, key)
		case !slices.Contains(whole.Unknown, last.Check):
			m.inferLeftover(n, event.LeftoverGone, last.Activity, of, at, true)
		}
		delete(listed, key)
	}
	for _, a := range listed {
		m.inferLeftover(n, event.LeftoverFound, a, of, at, true)
	}
}

// infer makes the center create an event about a fault. of is the ID of the cause.
func (m *Model) infer(n *Node, t event.Type, f event.Fault, of string, at time.Time, snapshot bool) {
	m.add(n, f.Key(), snapshot, Own{Type: t, Check: f.Check, Reason: f.Reason, Subject: f.Subject, Severity: f.Severity,
		Time: at, Data: f, Of: of})
}

func (m *Model) inferLeftover(n *Node, t event.Type, a event.Activity, of string, at time.Time, snapshot bool) {
	if t == event.LeftoverGone {
		a.Kind = finding.LeftoverGone
	}
	m.add(n, leftoverKey(a), snapshot, Own{Type: t, Check: a.Check, Reason: "Inferred", Subject: a.Subject, Time: at,
		Data: a, Of: of})
}

// add adds an event. Its ID is derived from its cause: created twice, it is a duplicate.
func (m *Model) add(n *Node, key string, snapshot bool, o Own) {
	o.Cluster, o.Node = n.Cluster, n.Name
	o.ID = DerivedID("inferred", n.Cluster, n.Name, o.Of, string(o.Type), key)
	j, err := o.Event()
	if err != nil {
		return // plain data of our own types: cannot fail
	}
	if n.Pending == nil {
		n.Pending = map[string]inferred{}
	}
	n.Pending[pendingKey(o.Type, key)], m.pending[Key{n.Cluster, n.Name}] = inferred{j, snapshot}, true
}

func pendingKey(t event.Type, key string) string {
	if t == event.LeftoverFound || t == event.LeftoverReleased || t == event.LeftoverGone {
		return "leftover\x00" + key
	}
	return key
}

// settle drops the inferred event about a fault or leftover that an event of type t has made untrue.
func (n *Node) settle(t event.Type, key string, gone bool) {
	key = pendingKey(t, key)
	p, ok := n.Pending[key]
	ends := p.Type == string(event.FaultCleared) || p.Type == string(event.LeftoverGone)
	if ok && ends != gone {
		delete(n.Pending, key)
	}
}

// confirmed applies an inferred event, which is in the journal now. If there is none with this ID, it changes nothing.
func (m *Model) confirmed(r journal.Record, known *Node) (pending bool) {
	if known == nil {
		return false
	}
	before := len(known.Pending)
	maps.DeleteFunc(known.Pending, func(_ string, p inferred) bool { return p.ID == r.ID })
	e, ok := read(r)
	if len(known.Pending) == before || known.Removed || !ok {
		return len(known.Pending) < before
	}
	n := m.changing(r)
	stamp := Stamp{Stream: n.Stream, Sequence: n.AsOf}
	switch data := e.Data.(type) {
	case event.Fault:
		if open := !n.of(data.Detector)[data.Key()].latest().Gone; open == (e.Type == event.FaultCleared) {
			m.setFault(n, data.Key(), e.Type, &Fault{Fault: data, Stamp: stamp}, r.Received)
			if open && data.Detector == "" { // an older event is late by the snapshot alone
				delete(n.Faults, data.Key())
			}
		}
	case event.Activity:
		stamp.Gone = e.Type == event.LeftoverGone
		if there := !n.Leftovers[leftoverKey(data)].latest().Gone; there == stamp.Gone {
			m.setLeftover(n, leftoverKey(data), e.Type, &Leftover{data, stamp})
			if there {
				delete(n.Leftovers, leftoverKey(data))
			}
		}
	}
	return true
}

// settled returns inferred events missing from the journal, in the order of IDs.
func (m *Model) settled() (events []journal.Event) {
	for key := range m.pending {
		n := m.nodes[key]
		if n == nil || len(n.Pending) == 0 {
			delete(m.pending, key)
			continue
		}
		for _, p := range n.Pending {
			events = append(events, p.Event)
		}
	}
	slices.SortFunc(events, func(a, b journal.Event) int { return cmp.Compare(a.ID, b.ID) })
	return events
}
