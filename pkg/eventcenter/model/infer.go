package model

import (
	"cmp"
	"encoding/json"
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

// snapshot collects the parts of a snapshot and, with the last part, makes the node's state match it.
func (m *Model) snapshot(n *Node, e event.Event, part snapshot) {
	asOf, err := strconv.ParseUint(part.AsOf, 10, 64)
	if err != nil || asOf < n.AsOf || asOf < n.PartsAsOf || part.Part < 1 || part.Part > maxParts {
		m.late++
		return
	}
	n.Day.Stopped = false
	if asOf != n.PartsAsOf || n.Parts == nil {
		n.Parts, n.PartsAsOf = map[int]snapshot{}, asOf
	}
	n.Parts[part.Part] = part
	whole := snapshot{}
	for i := 1; ; i++ {
		p, ok := n.Parts[i]
		if !ok {
			return // more parts will come
		}
		whole.Faults, whole.Leftovers = append(whole.Faults, p.Faults...), append(whole.Leftovers, p.Leftovers...)
		whole.Unknown = append(whole.Unknown, p.Unknown...)
		if p.End {
			break
		}
	}
	n.Parts, n.PartsAsOf, n.AsOf = nil, 0, asOf
	i := inference{m: m, n: n, of: e.ID(), at: e.Time, stamp: Stamp{Stream: n.Stream, Sequence: asOf}, unknown: whole.Unknown}
	i.faults(whole.Faults)
	i.leftovers(whole.Leftovers)
}

// inference compares the state of a node with a snapshot, or ends the state when the node is removed.
type inference struct {
	m     *Model
	n     *Node
	of    string // ID of the cause
	at    time.Time
	stamp Stamp // of the snapshot's state

	unknown []string // checks
}

// older reports whether the snapshot is newer than the latest event with stamp s.
func (i *inference) older(s Stamp) bool {
	return s.Stream != i.stamp.Stream || s.Sequence <= i.stamp.Sequence
}

func (i *inference) faults(active []event.Fault) {
	listed := map[string]*Fault{}
	for _, f := range active {
		if !f.OneShot && len(listed) < maxActive {
			listed[f.Key()] = &Fault{Fault: f, Stamp: i.stamp}
		}
	}
	i.n.Faults = match(i, i.n.Faults, listed, func(f *Fault) (Stamp, string) { return f.Stamp, f.Check }, func(f *Fault, ends bool) {
		t := event.FaultRaised
		if ends {
			t = event.FaultCleared
		}
		i.fault(t, f.Fault)
		i.n.Day.change(t, f.Fault, i.m.day.Through)
	})
}

func (i *inference) leftovers(active []event.Activity) {
	listed := map[string]*Leftover{}
	for _, a := range active {
		if len(listed) < maxActive {
			listed[leftoverKey(a)] = &Leftover{a, i.stamp}
		}
	}
	of := func(l *Leftover) (Stamp, string) { return l.Stamp, l.Check }
	i.n.Leftovers = match(i, i.n.Leftovers, listed, of, func(l *Leftover, ends bool) {
		t, a := event.LeftoverFound, l.Activity
		if ends {
			t, a.Kind = event.LeftoverGone, finding.LeftoverGone
		}
		i.leftover(t, a)
		i.n.Day.leftover(t, a.Subject.Kind)
	})
}

// match returns the faults or leftovers after a snapshot: those that it lists, and those that are newer or of checks in
// unknown state. of returns stamp and check. It calls differs with those that the snapshot begins or ends.
func match[E any](i *inference, known, listed map[string]*E, of func(*E) (Stamp, string), differs func(e *E, ends bool)) map[string]*E {
	for key, last := range known {
		stamp, check := of(last)
		undecided := listed[key] == nil && slices.Contains(i.unknown, check)
		switch {
		case undecided || !i.older(stamp):
			listed[key] = last
		case listed[key] == nil && !stamp.Gone:
			differs(last, true)
		case listed[key] != nil && stamp.Gone:
			differs(listed[key], false)
		}
	}
	for key, e := range listed {
		if known[key] == nil {
			differs(e, false)
		}
	}
	return listed
}

func (i *inference) fault(t event.Type, f event.Fault) {
	i.add(f.Key(), Own{Type: t, Check: f.Check, Reason: f.Reason, Subject: f.Subject, Severity: f.Severity, Data: f})
}

func (i *inference) leftover(t event.Type, a event.Activity) {
	i.add(leftoverKey(a), Own{Type: t, Check: a.Check, Reason: "Inferred", Subject: a.Subject, Data: a})
}

// add makes the center infer an event. Its ID is derived from the cause: created twice, it is a duplicate.
func (i *inference) add(key string, o Own) {
	o.Cluster, o.Node, o.Time, o.Of = i.n.Cluster, i.n.Name, i.at, i.of
	o.ID = DerivedID("inferred", o.Cluster, o.Node, o.Of, string(o.Type), key)
	j, err := o.Event()
	if err != nil {
		return // plain data of our own types: cannot fail
	}
	if i.n.Pending == nil {
		i.n.Pending = map[string]journal.Event{}
	}
	i.n.Pending[j.ID] = j
	i.m.pending[Key{o.Cluster, o.Node}] = true
}

// settled returns inferred events missing from the journal, in the order of IDs. It drops those that a later event in
// the same transaction has made untrue.
func (m *Model) settled() (events []journal.Event) {
	for key := range m.pending {
		n := m.nodes[key]
		maps.DeleteFunc(n.Pending, func(_ string, j journal.Event) bool { return !n.agrees(j) })
		if len(n.Pending) == 0 {
			delete(m.pending, key)
		}
		events = slices.AppendSeq(events, maps.Values(n.Pending))
	}
	slices.SortFunc(events, func(a, b journal.Event) int { return cmp.Compare(a.ID, b.ID) })
	return events
}

// agrees reports whether an inferred event is still true.
func (n *Node) agrees(j journal.Event) bool {
	var e struct{ Data event.Fault } // a leftover has a check and a subject, too
	if json.Unmarshal(j.JSON, &e) != nil {
		return false
	}
	key := e.Data.Key()
	switch event.Type(j.Type) {
	case event.FaultRaised:
		return n.has(key, e.Data.Detector)
	case event.FaultCleared:
		return !n.has(key, e.Data.Detector)
	}
	last := n.Leftovers[key]
	return (last != nil && !last.Gone) == (event.Type(j.Type) == event.LeftoverFound)
}
