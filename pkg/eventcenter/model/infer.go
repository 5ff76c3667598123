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
	if part.End {
		n.Day.Pods.report(n.Stream, part.PodsEnded)
	}
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
	i := inference{m: m, n: n, of: e.ID(), at: e.Time, stamp: Stamp{Stream: n.Stream, Sequence: asOf},
		unknown: whole.Unknown}
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

func (i *inference) faults(active []event.Fault) {
	known, listed := i.n.Faults, map[string]*Fault{}
	for _, f := range active {
		if !f.OneShot && len(listed) < maxActive {
			listed[f.Key()] = &Fault{Fault: f, Stamp: i.stamp}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(known)) {
		last := known[key]
		if i.keeps(last.Stamp, listed[key] == nil, last.Check) {
			listed[key] = last
		} else if listed[key] == nil && !last.Gone {
			i.fault(event.FaultCleared, last.Fault)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(listed)) {
		f := listed[key]
		if last := known[key]; (last == nil || last.Gone) && !f.Gone {
			i.fault(event.FaultRaised, f.Fault)
		}
	}
	i.n.Faults = listed
}

func (i *inference) leftovers(active []event.Activity) {
	known, listed := i.n.Leftovers, map[string]*Leftover{}
	for _, a := range active {
		if len(listed) < maxActive {
			listed[leftoverKey(a)] = &Leftover{a, i.stamp}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(known)) {
		last := known[key]
		if i.keeps(last.Stamp, listed[key] == nil, last.Check) {
			listed[key] = last
		} else if listed[key] == nil && !last.Gone {
			i.leftover(event.LeftoverGone, last.Activity)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(listed)) {
		l := listed[key]
		if last := known[key]; (last == nil || last.Gone) && !l.Gone {
			i.leftover(event.LeftoverFound, l.Activity)
		}
	}
	i.n.Leftovers = listed
}

// keeps reports whether a fault or leftover stays as it is despite the snapshot: it is older than the latest event, with
// stamp s, or does not list one of a check in unknown state.
func (i *inference) keeps(s Stamp, unlisted bool, check string) bool {
	return unlisted && slices.Contains(i.unknown, check) || s.Stream == i.stamp.Stream && s.Sequence > i.stamp.Sequence
}

// fault makes the center infer that a fault began or ended, and counts that, unless it is counted already.
func (i *inference) fault(t event.Type, f event.Fault) {
	i.add(f.Key(), Own{Type: t, Check: f.Check, Reason: f.Reason, Subject: f.Subject, Severity: f.Severity, Data: f})
	i.n.Day.change(t, f, i.m.day.Through)
}

// leftover makes the center infer that a leftover was found or is gone, and counts that.
func (i *inference) leftover(t event.Type, a event.Activity) {
	if t == event.LeftoverGone {
		a.Kind = finding.LeftoverGone
	}
	i.add(leftoverKey(a), Own{Type: t, Check: a.Check, Reason: "Inferred", Subject: a.Subject, Data: a})
	i.n.Day.leftover(t, a.Subject.Kind)
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
