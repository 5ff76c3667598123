// Package model is the present state of the nodes: active faults, leftovers, and the latest report of each agent. It is
// derived from the journal and can be deleted: a checkpoint and the rest of the journal yield the same state. It is
// kept in memory, since the state of 10,000 nodes takes a few megabytes, and answers in microseconds.
//
// The events of a node's agent, in the order of sequences, make its state. A snapshot contains the whole state: the
// model corrects differences, and reports them by the center's own events, marked "inferred". Late events change no
// state. For the reports the model counts what changes on each day.
package model

import (
	"cmp"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// Limits of the state that one node can make the center remember.
const (
	maxActive = 5000 // faults and leftovers, each; any more are only in the journal
	maxParts  = 64   // of a snapshot
)

// Model is the state of all nodes. Records are applied in the order of their offsets.
type Model struct {
	// Set before the first record.
	Location *time.Location // of its days
	Finished func(*Day)     // called with each day that has ended; may be nil

	opened time.Time // when the center started

	mu      sync.RWMutex // guards the fields below
	offset  uint64       // all events up to it are applied
	nodes   map[Key]*Node
	pending map[Key]bool // nodes with inferred events that the journal may lack
	late    uint64       // records too late to change the state
	dropped uint64       // active faults and leftovers over the limits
	day     *Day         // its counts are in the nodes; nil before the first record
}

// Key identifies a node.
type Key struct{ Cluster, Node string }

// Node is the state of one node. Its JSON form is that of checkpoints.
type Node struct {
	Cluster  string    `json:"cluster"`
	Name     string    `json:"name"`
	Offset   uint64    `json:"offset"` // of the last event that changed it
	LastSeen time.Time `json:"heard"`  // when its agent last sent an event, by the center's clock

	event.Streams
	AsOf uint64 `json:"asOf,omitempty"` // of the last snapshot

	Agent     event.Agent                  `json:"agent"`
	AgentType event.Type                   `json:"agentType,omitempty"` // of the event with this version of Agent
	Ahead     time.Duration                `json:"ahead,omitempty"`     // of its clock; zero: correct
	Faults    map[string]*Fault            `json:"faults,omitempty"`
	Leftovers map[string]*Leftover         `json:"leftovers,omitempty"`
	Foreign   map[string]map[string]*Fault `json:"foreign,omitempty"` // by detector and key
	Parts     map[int]snapshot             `json:"parts,omitempty"`   // of an incomplete snapshot
	PartsAsOf uint64                       `json:"partsAsOf,omitempty"`
	Pending   map[string]journal.Event     `json:"pending,omitempty"`
	Notes     map[string]*Note             `json:"notes,omitempty"` // by people, for each fault

	Meta             // not in the journal: from the cluster
	Silence *Silence `json:"silence,omitempty"`
	Removed bool     `json:"removed,omitempty"` // its Node is gone; dropped from a checkpoint of the next day

	Day *NodeDay `json:"day,omitempty"` // nil: the journal had no event of it
}

// Stamp identifies the agent's latest event about a fault or leftover. Ended ones stay until the next snapshot, so that
// an older event cannot restore them.
type Stamp struct {
	Stream   string `json:"stream,omitempty"`
	Sequence uint64 `json:"sequence,omitempty"`
	Gone     bool   `json:"gone,omitempty"`
}

// Leftover is a leftover on a node.
type Leftover struct {
	event.Activity
	Stamp
}

// New returns the state before the first event.
func New() *Model {
	return &Model{Location: time.UTC, opened: time.Now(), nodes: map[Key]*Node{}, pending: map[Key]bool{}}
}

// Offset returns the offset up to which the journal is applied.
func (m *Model) Offset() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.offset
}

// Apply applies records and returns the derived events that the journal lacks.
func (m *Model) Apply(records []journal.Record) []journal.Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range records {
		m.apply(r)
	}
	return m.settled()
}

func (m *Model) apply(r journal.Record) {
	if m.day == nil {
		d := m.newDay(r.Received, r.Offset-1)
		d.Through, d.Lost = r.Received, m.offset // of a checkpoint without counts: the time until now is unknown
		m.begin(d, &Day{})
	}
	m.advance(r.Received)
	m.offset = max(m.offset, r.Offset)
	known := m.nodes[Key{r.Cluster, r.Node}]
	isOwn := r.Source == Source(r.Cluster)
	if isOwn && known != nil {
		delete(known.Pending, r.ID)
	}
	switch {
	case known != nil && r.Offset <= known.Offset: // already in the checkpoint
	case isOwn:
		m.own(r, known)
	case r.Stream == "":
		m.foreign(r)
	default:
		e, ok := read(r)
		if !ok {
			return // a type of a newer center; it is in the journal
		}
		n := m.changing(r)
		n.LastSeen = r.Received
		m.take(n, e)
	}
}

// read decodes the parts of an event that change the state. The rest was verified before it was journaled: a start
// reads thousands of events.
func read(r journal.Record) (e event.Event, ok bool) {
	if r.Decoded != nil {
		return *r.Decoded, true
	}
	var envelope struct {
		Time time.Time
		Data json.RawMessage
	}
	if json.Unmarshal(r.JSON, &envelope) != nil {
		return e, false
	}
	e = event.Event{Type: event.Type(r.Type), Cluster: r.Cluster, Node: r.Node, Time: envelope.Time, Stream: r.Stream,
		Sequence: r.Sequence}
	var err error
	e.Data, err = event.ReadData(e.Type, envelope.Data)
	return e, err == nil
}

func (m *Model) node(key Key) *Node {
	n := m.nodes[key]
	if n == nil {
		n = &Node{Cluster: key.Cluster, Name: key.Node}
		m.nodes[key] = n
	}
	if n.Removed { // another node with the same name
		*n = Node{Cluster: key.Cluster, Name: key.Node, Offset: n.Offset, Pending: n.Pending, Day: n.Day}
	}
	return n
}

// changing returns the node that a record changes, after its time until now is counted.
func (m *Model) changing(r journal.Record) *Node {
	n := m.node(Key{r.Cluster, r.Node})
	n.Offset = r.Offset
	if n.Day == nil {
		n.Day = &NodeDay{}
	}
	if !n.Day.Present {
		n.Day.Present, n.Day.Since = true, m.day.Through
		n.Day.Joined++
	}
	m.pass(n)
	return n
}

// take applies an event of the node's agent.
func (m *Model) take(n *Node, e event.Event) {
	stamp := Stamp{Stream: e.Stream, Sequence: e.Sequence}
	s, now := e.Data.(snapshot) // only a running agent sends one
	if now {
		stamp.Stream = cmp.Or(s.Of, e.Stream)
	}
	current, began := n.Current(stamp.Stream, now)
	if !current {
		m.late++
		if f, ok := e.Data.(event.Fault); ok {
			n.Day.history(e.Type, f)
		}
		return
	}
	if began {
		n.AsOf, n.Parts, n.PartsAsOf = 0, nil, 0
	}
	stamp.Stream = n.Stream // share one string: the event's copy is freed
	switch data := e.Data.(type) {
	case event.Agent:
		n.Agent, n.AgentType, n.Day.Stopped = data, e.Type, e.Type == event.AgentStopping
		if n.Day.Stopped {
			n.Day.Pods.report(n.Stream, data.PodsEnded)
		}
	case event.Fault:
		m.putFault(n, "", e.Type, &Fault{Fault: data, Stamp: stamp})
	case event.Activity:
		switch e.Type {
		case event.LeftoverFound, event.LeftoverReleased, event.LeftoverGone:
			m.putLeftover(n, e.Type, &Leftover{data, stamp})
		case event.ActionSucceeded:
			n.Day.repaired(event.Fault{Check: data.Check, Subject: data.Subject}.Key())
		}
	case snapshot:
		m.snapshot(n, e, data)
	}
}

// older reports whether an event is older than a snapshot, or than the latest event about the same fault or leftover.
func (n *Node) older(s, last Stamp) bool {
	return s.Sequence <= n.AsOf || last.Stream == s.Stream && last.Sequence >= s.Sequence
}

func (m *Model) putLeftover(n *Node, t event.Type, l *Leftover) {
	key, last := leftoverKey(l.Activity), Stamp{Gone: true}
	was := n.Leftovers[key]
	if was != nil {
		last = was.Stamp
	}
	switch {
	case n.older(l.Stamp, last):
		m.late++
		return
	case was == nil && len(n.Leftovers) >= maxActive:
		m.dropped++
		return
	}
	if l.Gone = t != event.LeftoverFound; l.Gone != last.Gone {
		n.Day.leftover(t, l.Subject.Kind)
	}
	if l.Gone {
		l.Activity = event.Activity{} // its key is enough
	}
	if n.Leftovers == nil {
		n.Leftovers = map[string]*Leftover{}
	}
	n.Leftovers[key] = l
}

func leftoverKey(a event.Activity) string {
	return strings.Join([]string{a.Check, a.Subject.Kind, a.Subject.Name, a.Subject.UID}, "\x00")
}

// wrongClock is how far a node's clock may be off. Signs of life are sent at once; their delay is shorter than this.
const wrongClock = 2 * time.Minute

// RecordAlive records an agent's sign of life (the journal has none): sentAt by the agent's clock, at by the
// center's.
func (m *Model) RecordAlive(key Key, agent event.Agent, sentAt, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.nodes[key]; n != nil && n.Removed {
		return // the first event of a new node with this name is in the journal
	}
	n := m.node(key)
	if at.Before(n.LastSeen) {
		return // from another replica, and older than this one's
	}
	n.Agent, n.AgentType, n.LastSeen, n.Ahead = agent, event.AgentAlive, at, 0
	if ahead := sentAt.Sub(at).Round(time.Second); ahead.Abs() > wrongClock && !sentAt.IsZero() {
		n.Ahead = ahead
	}
}
