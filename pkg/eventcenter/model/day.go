package model

import (
	"cmp"
	"maps"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
)

// Day is one day: its counts, and the state at its end, or now. docs/event-center-reference.md defines each number.
type Day struct {
	Name     string    `json:"name"`     // 2006-01-02
	Timezone string    `json:"timezone"` // which defines the day
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	Through  time.Time `json:"through"` // counted up to this time
	Complete bool      `json:"complete"`

	Before uint64 `json:"before,string"`  // the offset before the day's first event
	Offset uint64 `json:"offset,string"`  // counted up to this offset
	Lost   uint64 `json:"lost,omitempty"` // events that are not counted: unreadable, or before an upgrade
	// Began is the offset after which days are counted; 0: the journal's begin, or a stored day.
	Began uint64 `json:"began,omitempty"`

	Nodes map[string]*NodeDay `json:"nodes"` // by cluster and name
	Find  Durations           `json:"find,omitempty"`
	Clear Durations           `json:"clear,omitempty"`
}

// newDay returns the day of a moment, after an offset.
func (m *Model) newDay(at time.Time, before uint64) *Day {
	d := &Day{Timezone: m.Location.String(), Before: before}
	d.Name, d.From, d.To = dayOf(at, m.Location)
	d.Through = d.From
	return d
}

// Continue makes the present day follow a stored one, if there is no checkpoint, or one of an older version, which did
// not count. The journal begins after an offset.
func (m *Model) Continue(stored *Day, after uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if after = max(after, m.offset); m.day == nil && after >= stored.Offset {
		m.begin(m.next(stored), stored)
		m.offset, m.day.Lost, m.day.Began = after, after-stored.Offset, after
	}
}

// next returns the day after another. After a change of timezone it may be part of a day.
func (m *Model) next(d *Day) *Day {
	is := m.newDay(d.To, d.Offset)
	if is.Name <= d.Name { // a report of that name exists
		is.Name, _, is.To = dayOf(is.To, m.Location)
	}
	is.From, is.Through, is.Began = d.To, d.To, d.Began
	return is
}

// begin begins to count, after a stored day, for nodes whose state is known from a checkpoint of an older version.
func (m *Model) begin(d, stored *Day) {
	d.Began = m.offset
	m.day = d
	for key, n := range m.nodes {
		if !n.shown() || n.Offset == 0 {
			continue
		}
		n.Day = &NodeDay{Stopped: n.AgentType == event.AgentStopping}
		if was := stored.Nodes[key.Cluster+"\x00"+key.Node]; was != nil {
			n.Day = was
		}
		n.Day.Present = true
		n.Day = n.nextDay(d.Through)
		open := n.Day.Open
		n.Day.Open = map[string]*Episode{}
		for key, f := range n.active() {
			n.Day.Open[key] = cmp.Or(open[key], newEpisode(*f, d.Through))
		}
	}
}

// advance counts time up to a moment, and ends the days that are over by then.
func (m *Model) advance(now time.Time) {
	for !now.Before(m.day.To) {
		d := m.counted(m.day.To)
		d.Complete = true
		if m.Finished != nil {
			m.Finished(d)
		}
		m.day = m.next(d)
		for _, n := range m.nodes {
			n.Day = n.nextDay(d.To)
		}
	}
	m.day.Through = event.Later(m.day.Through, now)
}

// Advance counts time up to a moment without an event, but ends one day at most. It reports whether time is left.
func (m *Model) Advance(now time.Time) (more bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.day == nil {
		return false
	}
	m.advance(event.Earlier(now, m.day.To))
	return m.day.Through.Before(now)
}

// Today returns the present day, counted up to a moment; nil before the first event.
func (m *Model) Today(now time.Time) *Day {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.day == nil {
		return nil
	}
	return m.counted(event.Earlier(event.Later(m.day.Through, now), m.day.To))
}

// DayName returns the name of the present day; empty before the first event.
func (m *Model) DayName() string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.day == nil {
		return ""
	}
	return m.day.Name
}

// Before returns the offset before the present day's first event.
func (m *Model) Before() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.day == nil {
		return m.offset
	}
	return m.day.Before
}

// Lose counts events that cannot be read.
func (m *Model) Lose(events uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.day != nil { // those before the first day do not count
		m.day.Lost += events
	}
}

// counted returns a copy of the present day, counted up to a moment.
func (m *Model) counted(at time.Time) *Day {
	d := *m.day
	d.Through, d.Offset, d.Nodes, d.Find, d.Clear = at, m.offset, map[string]*NodeDay{}, Durations{}, Durations{}
	for key, n := range m.nodes {
		if n.Day == nil {
			continue
		}
		is := *n.Day
		is.Cluster, is.Name, is.Place = key.Cluster, key.Node, n.place()
		is.pass(m.serving(n), at)
		d.Find.Add(is.Find)
		d.Clear.Add(is.Clear)
		is.Find, is.Clear, is.Ended = nil, nil, nil
		is.Open, is.Faults, is.Leftovers = copied(is.Open), copied(is.Faults), copied(is.Leftovers)
		for key := range is.Open {
			if note := n.Notes[key]; note != nil {
				put(&is.Muted, key, note.MutedUntil)
			}
		}
		for key, l := range n.Leftovers {
			if !l.Gone {
				put(&is.Left, key, l.Subject.Kind)
			}
		}
		d.Nodes[key.Cluster+"\x00"+key.Node] = &is
	}
	return &d
}

// put sets an entry of a map, which may be nil.
func put[V any](all *map[string]V, key string, value V) {
	if *all == nil {
		*all = map[string]V{}
	}
	(*all)[key] = value
}

func copied[V any](all map[string]*V) map[string]*V {
	if len(all) == 0 {
		return nil
	}
	some := make(map[string]*V, len(all))
	for key, value := range all {
		one := *value
		some[key] = &one
	}
	return some
}

// place returns the node's place, or the last known one.
func (n *Node) place() Place {
	last := Place{}
	if n.Day != nil {
		last = n.Day.Place
	}
	return cmp.Or(Place{n.Pool, n.Zone}, last)
}

// nextDay returns the counts of the next day, which begin with the state at the end of this one.
func (n *Node) nextDay(from time.Time) *NodeDay {
	d := n.Day
	if d == nil || !d.Present {
		return nil
	}
	maps.DeleteFunc(d.Ended, func(key string, _ []time.Time) bool { return !n.remembers(key) })
	pods := d.Pods
	pods.Ended = 0
	return &NodeDay{Place: n.place(), Since: from, Present: true, Stopped: d.Stopped, NotReady: d.NotReady,
		Maintenance: d.Maintenance, Open: d.Open, Ended: d.Ended, Pods: pods}
}

// remembers reports whether a fault has ended so lately that an older event about it may still arrive.
func (n *Node) remembers(key string) bool {
	for _, all := range n.Foreign {
		if f := all[key]; f != nil {
			return f.Gone
		}
	}
	f := n.Faults[key]
	return f != nil && f.Gone
}

// pass counts the time of a node until now, before its state changes.
func (m *Model) pass(n *Node) {
	if n.Day != nil && n.Day.Present && m.day.Through.After(n.Day.Since) {
		n.Day.pass(m.serving(n), m.day.Through)
	}
}

// serving is whether a node can serve.
type serving int

const (
	available serving = iota
	unavailable
	unknown
)

// serving returns the present state of a node. A known fault counts even if its agent has been silent since.
func (m *Model) serving(n *Node) serving {
	var state State
	if n.Silence != nil {
		state = n.Silence.State
	}
	whole := m.nodes[Key{n.Cluster, ""}]
	switch {
	case state == Lost || n.Day.NotReady || n.Day.broken():
		return unavailable
	case state == Blind || n.Day.Stopped || whole != nil && whole.Silence != nil && whole.Silence.State == silent:
		return unknown
	}
	return available
}

// dayOf returns the day that contains a moment, in a timezone: its name, its begin and its end.
func dayOf(at time.Time, location *time.Location) (name string, from, to time.Time) {
	y, m, d := at.In(location).Date()
	from, to = midnight(y, m, d, location), midnight(y, m, d+1, location)
	return from.Add(12 * time.Hour).In(location).Format(time.DateOnly), from.UTC(), to.UTC()
}

// midnight returns the first moment of a day. If clocks go forward at midnight, it is later than 0:00.
func midnight(y int, m time.Month, d int, location *time.Location) time.Time {
	t, noon := time.Date(y, m, d, 0, 0, 0, 0, location), time.Date(y, m, d, 12, 0, 0, 0, location)
	for t.Day() != noon.Day() && t.Before(noon) { // 0:00 does not exist, and time.Date returned a time on the day before
		t = t.Add(30 * time.Minute)
	}
	return t
}
