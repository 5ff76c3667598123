// Package report computes the daily reports of a fleet: faults found, ended by themselves or by a repair, faults that
// need people, and the nodes' availability. A day is a fold over the journal by the center's time of receipt. It has a
// file of its own, including the state at its end, so that a report outlives the events behind it.
//
// docs/event-center-reference.md defines each number. Only the fold decides; reports only add up days, and the tests
// count the same numbers with plain SQL.
package report

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// version is the format of a day's file.
const version = 1

// Limits of the data that one node can make a day remember. Anything more is counted under other; active faults and
// leftovers beyond the limit are not counted, as in the model.
const (
	maxActive = 5000 // faults and leftovers, each
	maxNames  = 200  // of faults, and kinds of leftovers, in a day
	other     = "(other)"
)

// Key identifies a node.
type Key struct{ Cluster, Node string }

// Place is the location of a node, as reported by its cluster.
type Place struct{ Pool, Zone string }

// Day is one day: its counts, and the state at its end, or now.
type Day struct {
	Version  int       `json:"version"`
	Journal  string    `json:"journal"`
	Name     string    `json:"name"`     // 2006-01-02
	Timezone string    `json:"timezone"` // which defines the day
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	Through  time.Time `json:"through"` // counted up to this time
	Complete bool      `json:"complete"`

	Before uint64 `json:"before,string"` // the offset before the day's first event
	Offset uint64 `json:"offset,string"` // counted up to this offset
	Events uint64 `json:"events"`
	Lost   uint64 `json:"lost,omitempty"` // events that can no longer be read

	Nodes  map[string]*Node `json:"nodes"` // by cluster and name
	Silent map[string]bool  `json:"silent,omitempty"`
	Find   durations        `json:"find,omitempty"`
	Clear  durations        `json:"clear,omitempty"`
}

// Node is a node on a day.
type Node struct {
	Cluster string `json:"cluster"`
	Name    string `json:"name"`
	Place

	Time  Time      `json:"time"`
	Since time.Time `json:"since"` // Time is counted up to this time

	Present bool `json:"present,omitempty"`
	Joined  int  `json:"joined,omitempty"` // times on this day
	Removed int  `json:"removed,omitempty"`

	Lost        bool      `json:"lost,omitempty"`
	Blind       bool      `json:"blind,omitempty"`
	Stopped     bool      `json:"stopped,omitempty"`  // its agent has reported a stop
	NotReady    bool      `json:"notReady,omitempty"` // according to the apiserver when the node was silent
	Maintenance time.Time `json:"maintenance,omitzero"`

	event.Streams
	AsOf uint64 `json:"asOf,omitempty"` // of the last snapshot

	Open      map[string]*Episode      `json:"open,omitempty"`
	Ended     map[string]stamp         `json:"ended,omitempty"` // the latest of each, until a snapshot
	Muted     map[string]time.Time     `json:"muted,omitempty"`
	Left      map[string]string        `json:"left,omitempty"` // kinds of the present leftovers
	Faults    map[string]*FaultCount   `json:"faults,omitempty"`
	Leftovers map[string]*LeftoverKind `json:"leftovers,omitempty"`
	Pods      Pods                     `json:"pods,omitzero"`
}

// Time is how long a node was in each state, in milliseconds.
type Time struct {
	Available   int64 `json:"available"`
	Unavailable int64 `json:"unavailable"`
	Unknown     int64 `json:"unknown"`
	Maintenance int64 `json:"maintenance"`
}

// counted returns the time that counts: all but declared maintenance.
func (t Time) counted() int64 { return t.Available + t.Unavailable + t.Unknown }

func (t Time) add(o Time) Time {
	return Time{t.Available + o.Available, t.Unavailable + o.Unavailable, t.Unknown + o.Unknown,
		t.Maintenance + o.Maintenance}
}

// stamp identifies the latest event about a fault.
type stamp struct {
	Stream   string    `json:"stream,omitempty"`
	Sequence uint64    `json:"sequence,omitempty"`
	RaisedAt time.Time `json:"raisedAt,omitzero"`
	At       time.Time `json:"at,omitzero"` // for a detector's fault: see model.Foreign
}

// Episode is a fault from the receipt of its start to the receipt of its end.
type Episode struct {
	stamp
	Check    string           `json:"check"`
	Reason   string           `json:"reason"`
	Detector string           `json:"detector,omitempty"` // empty: the node's agent
	Severity finding.Severity `json:"severity"`
	Subject  finding.Subject  `json:"subject"`
	Message  string           `json:"message"`
	Found    time.Time        `json:"found"`
	Repaired bool             `json:"repaired,omitempty"` // an action for it succeeded
	Owner    string           `json:"owner,omitempty"`    // the person who took it over
	Name     string           `json:"name"`               // the name under which it is counted
}

// FaultCount is how often a fault was found on a node, and how it ended.
type FaultCount struct {
	Check    string           `json:"check"`
	Reason   string           `json:"reason"`
	Detector string           `json:"detector,omitempty"`
	Severity finding.Severity `json:"severity"`
	Outcomes
}

// Outcomes counts faults. The faults at the beginning plus Found equal all others plus the faults at the end.
type Outcomes struct {
	Found    int `json:"found"`
	OneShot  int `json:"oneShot"`  // end at once by their nature
	Late     int `json:"late"`     // over before they were received
	Cleared  int `json:"cleared"`  // ended by themselves: no action of the agent had succeeded
	Repaired int `json:"repaired"` // after a successful action of the agent
	Removed  int `json:"removed"`  // ended with their Node
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

// Pods counts ended pods as reported by agents: each start of an agent counts from 0.
type Pods struct {
	Stream  string `json:"stream,omitempty"`
	Last    uint64 `json:"last,omitempty"` // the last reported number
	Ended   uint64 `json:"ended,omitempty"`
	Reports bool   `json:"says,omitempty"` // its agent reports the number
}

// state is the state of a node.
type state int

const (
	absent state = iota
	available
	unavailable
	unknown
)

// state returns the present state of a node. A known fault counts even if its agent has been silent since.
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

// broken reports whether the node cannot serve according to its agent's findings. The agent taints nodes with fatal
// faults.
func (n *Node) broken() bool {
	for _, e := range n.Open {
		if e.Severity == finding.Fatal || e.notReady() {
			return true
		}
	}
	return false
}

// notReady reports whether a fault means that the Node's condition Ready is not True.
func (e *Episode) notReady() bool {
	return e.Subject.Kind == "node-condition" && e.Subject.Name == "Ready" &&
		(e.Reason == "NodeNotReady" || e.Reason == "NodeNotHeard")
}

// passed returns the time of a node including the time up to a moment.
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

// settle adds the time of a node up to a moment, before its state changes.
func (d *Day) settle(n *Node, at time.Time) {
	if at.After(n.Since) {
		n.Time, n.Since = d.passed(n, at), at
	}
}

// durations counts durations in seconds: exact below an hour, then in whole minutes, from two days on in whole hours.
// So their number is limited, and median and p90 over any number of days are exact for rounded values.
type durations map[int64]int

func (d *durations) add(length time.Duration) {
	if *d == nil {
		*d = durations{}
	}
	(*d)[rounded(length)]++
}

// rounded rounds a duration down to the stored precision, in seconds.
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

// dayOf returns the day that contains a moment, in a timezone: its name, its begin and its end.
func dayOf(at time.Time, location *time.Location) (name string, from, to time.Time) {
	y, m, d := at.In(location).Date()
	from, to = midnight(y, m, d, location), midnight(y, m, d+1, location)
	return from.Add(12 * time.Hour).In(location).Format(time.DateOnly), from.UTC(), to.UTC()
}

// midnight returns the first moment of a day. If clocks go forward at midnight, it is later than 0:00.
func midnight(y int, m time.Month, d int, location *time.Location) time.Time {
	t := time.Date(y, m, d, 0, 0, 0, 0, location)
	if got := t.Day(); got != time.Date(y, m, d, 12, 0, 0, 0, location).Day() {
		// 0:00 does not exist, and time.Date returned a time on the day before
		_, offset := time.Date(y, m, d, 12, 0, 0, 0, location).Zone()
		_, before := t.Zone()
		return t.Add(time.Duration(offset-before) * time.Second)
	}
	return t
}
