// Package report is the day of a fleet: what was found, what ended by itself or by a repair, what needs people, and how
// available the nodes were. A day is a fold over the journal, by the center's own time of receipt: it is kept in a
// file of its own, which also says how things stood at its end, so that a report outlives the events that it is of.
//
// docs/event-center-reference.md says how each number is defined. The fold is the one place where that is decided; what is built
// from days only adds up, and the tests count the same with plain SQL.
package report

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// version is that of the format of a day's file.
const version = 1

// Bounds of what one node may make a day remember. What is beyond is counted under other, or, of what is active, not at
// all, as in the model.
const (
	maxActive = 5000 // faults and leftovers, each
	maxNames  = 200  // of faults, and kinds of leftovers, in a day
	maxPast   = 64   // streams
	other     = "(other)"
)

// Key is a node.
type Key struct{ Cluster, Node string }

// Place is where a node stands, as its cluster says.
type Place struct{ Pool, Zone string }

// Day is one day: what was counted, and how things stand at its end, or now.
type Day struct {
	Version  int       `json:"version"`
	Journal  string    `json:"journal"`
	Name     string    `json:"name"`     // 2006-01-02
	Timezone string    `json:"timezone"` // in which it is a day
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	Through  time.Time `json:"through"` // up to then it is counted
	Complete bool      `json:"complete"`

	Before uint64 `json:"before,string"` // the offset before the first of the day
	Offset uint64 `json:"offset,string"` // up to which it is counted
	Events uint64 `json:"events"`
	Lost   uint64 `json:"lost,omitempty"` // events that cannot be read any more

	Nodes  map[string]*Node `json:"nodes"` // by cluster and name
	Silent map[string]bool  `json:"silent,omitempty"`
	Find   durations        `json:"find,omitempty"`
	Clear  durations        `json:"clear,omitempty"`
}

// Node is a node in a day.
type Node struct {
	Cluster string `json:"cluster"`
	Name    string `json:"name"`
	Place

	Time  Time      `json:"time"`
	Since time.Time `json:"since"` // up to then Time is counted

	Present bool `json:"present,omitempty"`
	Joined  int  `json:"joined,omitempty"` // times in the day
	Removed int  `json:"removed,omitempty"`

	Lost        bool      `json:"lost,omitempty"`
	Blind       bool      `json:"blind,omitempty"`
	Stopped     bool      `json:"stopped,omitempty"`  // its agent has said so
	NotReady    bool      `json:"notReady,omitempty"` // the apiserver has said so when it was silent
	Maintenance time.Time `json:"maintenance,omitzero"`

	Stream string   `json:"stream,omitempty"` // see model.Node
	Past   []string `json:"past,omitempty"`
	AsOf   uint64   `json:"asOf,omitempty"`

	Open      map[string]*Episode      `json:"open,omitempty"`
	Ended     map[string]stamp         `json:"ended,omitempty"` // the last of each, until a snapshot
	Muted     map[string]time.Time     `json:"muted,omitempty"`
	Left      map[string]string        `json:"left,omitempty"` // kinds of the leftovers that are there
	Faults    map[string]*FaultCount   `json:"faults,omitempty"`
	Leftovers map[string]*LeftoverKind `json:"leftovers,omitempty"`
	Pods      Pods                     `json:"pods,omitzero"`
}

// Time is how long a node was what, in milliseconds.
type Time struct {
	Available   int64 `json:"available"`
	Unavailable int64 `json:"unavailable"`
	Unknown     int64 `json:"unknown"`
	Maintenance int64 `json:"maintenance"`
}

// counted is the time that counts: all but declared maintenance.
func (t Time) counted() int64 { return t.Available + t.Unavailable + t.Unknown }

func (t Time) add(o Time) Time {
	return Time{t.Available + o.Available, t.Unavailable + o.Unavailable, t.Unknown + o.Unknown,
		t.Maintenance + o.Maintenance}
}

// stamp is the last word on a fault.
type stamp struct {
	Stream   string    `json:"stream,omitempty"`
	Sequence uint64    `json:"sequence,omitempty"`
	RaisedAt time.Time `json:"raisedAt,omitzero"`
	At       time.Time `json:"at,omitzero"` // of a detector: see model.Foreign
}

// Episode is a fault from when it is received to when its end is.
type Episode struct {
	stamp
	Check    string           `json:"check"`
	Reason   string           `json:"reason"`
	Detector string           `json:"detector,omitempty"` // unless the node's agent has found it
	Severity finding.Severity `json:"severity"`
	Subject  finding.Subject  `json:"subject"`
	Message  string           `json:"message"`
	Found    time.Time        `json:"found"`
	Repaired bool             `json:"repaired,omitempty"` // an action on it succeeded
	Owner    string           `json:"owner,omitempty"`    // who took it over
	Name     string           `json:"name"`               // under which it is counted
}

// FaultCount is how often a fault was found on a node, and what became of it.
type FaultCount struct {
	Check    string           `json:"check"`
	Reason   string           `json:"reason"`
	Detector string           `json:"detector,omitempty"`
	Severity finding.Severity `json:"severity"`
	Outcomes
}

// Outcomes counts faults. Those that were there at the beginning, and Found, are all others and those that are there
// at the end.
type Outcomes struct {
	Found    int `json:"found"`
	OneShot  int `json:"oneShot"`  // over at once by their nature
	Late     int `json:"late"`     // over before they were received
	Cleared  int `json:"cleared"`  // by itself: no action of the agent had succeeded on it
	Repaired int `json:"repaired"` // after an action of the agent that succeeded
	Removed  int `json:"removed"`  // with their Node
}

func (o Outcomes) add(p Outcomes) Outcomes {
	return Outcomes{o.Found + p.Found, o.OneShot + p.OneShot, o.Late + p.Late, o.Cleared + p.Cleared,
		o.Repaired + p.Repaired, o.Removed + p.Removed}
}

// LeftoverKind counts leftovers of a kind on a node.
type LeftoverKind struct {
	Found    int `json:"found"`
	Released int `json:"released"`
	Gone     int `json:"gone"`
}

// Pods counts pods that ended, as agents say: each start of an agent counts from 0.
type Pods struct {
	Stream string `json:"stream,omitempty"`
	Last   uint64 `json:"last,omitempty"` // what was said last
	Ended  uint64 `json:"ended,omitempty"`
	Says   bool   `json:"says,omitempty"` // its agent counts them
}

// state is what a node is.
type state int

const (
	absent state = iota
	available
	unavailable
	unknown
)

// state returns what a node is now. What is known to be wrong counts, also where its agent is silent since.
func (d *Day) state(n *Node) state {
	switch {
	case !n.Present:
		return absent
	case n.Lost || n.NotReady || n.broken():
		return unavailable
	case n.Blind || n.Stopped || d.Silent[n.Cluster]:
		return unknown
	}
	return available
}

// broken reports whether the node cannot serve by what its agent has found. The agent's taint follows from fatal
// faults.
func (n *Node) broken() bool {
	for _, e := range n.Open {
		if e.Severity == finding.Fatal || e.notReady() {
			return true
		}
	}
	return false
}

// notReady reports whether a fault says that the Node's condition Ready is not True.
func (e *Episode) notReady() bool {
	return e.Subject.Kind == "node-condition" && e.Subject.Name == "Ready" &&
		(e.Reason == "NodeNotReady" || e.Reason == "NodeNotHeard")
}

// passed returns the time of a node with what has passed up to a moment.
func (d *Day) passed(n *Node, at time.Time) Time {
	t := n.Time
	whole := at.Sub(n.Since).Milliseconds()
	if whole <= 0 {
		return t
	}
	in := d.state(n)
	if in == absent {
		return t
	}
	declared := min(max(n.Maintenance.Sub(n.Since).Milliseconds(), 0), whole)
	t.Maintenance += declared
	switch in {
	case available:
		t.Available += whole - declared
	case unavailable:
		t.Unavailable += whole - declared
	default:
		t.Unknown += whole - declared
	}
	return t
}

// settle counts the time of a node up to a moment, before its state changes.
func (d *Day) settle(n *Node, at time.Time) {
	if at.After(n.Since) {
		n.Time, n.Since = d.passed(n, at), at
	}
}

// durations counts lengths of time, in seconds: exactly below an hour, by whole minutes below two days, else by whole
// hours. So a day has a bounded number of them, and median and p90 of any number of days are exact for them.
type durations map[int64]int

func (d *durations) add(length time.Duration) {
	if *d == nil {
		*d = durations{}
	}
	(*d)[rounded(length)]++
}

// rounded cuts a length of time to what is kept of it, in seconds.
func rounded(length time.Duration) int64 {
	s := max(0, int64(length/time.Second))
	switch {
	case s < 3600:
		return s
	case s < 48*3600:
		return s - s%60
	}
	return s - s%3600
}

// dayOf returns the day in which a moment is, in a timezone: its name, its begin and its end.
func dayOf(at time.Time, location *time.Location) (name string, from, to time.Time) {
	y, m, d := at.In(location).Date()
	from, to = midnight(y, m, d, location), midnight(y, m, d+1, location)
	return from.Add(12 * time.Hour).In(location).Format(time.DateOnly), from.UTC(), to.UTC()
}

// midnight returns the first moment of a day. Where clocks go forward at midnight, that is later than 0:00.
func midnight(y int, m time.Month, d int, location *time.Location) time.Time {
	t := time.Date(y, m, d, 0, 0, 0, 0, location)
	if got := t.Day(); got != time.Date(y, m, d, 12, 0, 0, 0, location).Day() {
		// 0:00 does not exist, and was taken for a time of the day before
		_, offset := time.Date(y, m, d, 12, 0, 0, 0, location).Zone()
		_, before := t.Zone()
		return t.Add(time.Duration(offset-before) * time.Second)
	}
	return t
}
