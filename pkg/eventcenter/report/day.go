// Package report computes the daily reports of a fleet: faults found, ended by themselves or by a repair, faults that
// need people, and the nodes' availability. It counts the changes of a model, by the center's time of receipt. A day has a
// file of its own, including the state at its end, so that a report outlives the events behind it.
//
// docs/event-center-reference.md defines each number. Only the model decides; reports only add up days, and the tests
// count the same numbers with plain SQL.
package report

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// version is the format of a day's file.
const version = 1

// Limits of the data that one node can make a day remember. Anything more is counted under other.
const (
	maxEnded   = 5000 // faults that have ended
	maxNames   = 200  // of faults, and kinds of leftovers, in a day
	maxMessage = 300  // bytes of a fault's message that a report shows
	other      = "(other)"
)

// Place is the location of a node, as reported by its cluster.
type Place struct{ Pool, Zone string }

// Day is one day: its counts, and the faults and leftovers at its end, or now.
type Day struct {
	Version  int       `json:"version"`
	Journal  string    `json:"journal"`
	Name     string    `json:"name"`     // 2006-01-02
	Timezone string    `json:"timezone"` // which defines the day
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	Through  time.Time `json:"through"` // counted up to this time
	Complete bool      `json:"complete"`

	Before uint64 `json:"before,string"`  // the offset before the day's first event
	Offset uint64 `json:"offset,string"`  // counted up to this offset
	Lost   uint64 `json:"lost,omitempty"` // events that can no longer be read

	Nodes map[string]*Node `json:"nodes"` // by cluster and name
	Find  durations        `json:"find,omitempty"`
	Clear durations        `json:"clear,omitempty"`
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

	// At the end: the active faults and leftovers, and until when people have muted faults.
	Open  map[string]*Active   `json:"open,omitempty"`
	Muted map[string]time.Time `json:"muted,omitempty"`
	Left  map[string]string    `json:"left,omitempty"` // kinds of leftovers

	Ended     map[string]ended         `json:"ended,omitempty"` // the latest of each, on this day and the one before
	Faults    map[counted]*Outcomes    `json:"faults,omitempty"`
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

// ended is the latest occurrence of a fault that has ended.
type ended struct {
	RaisedAt time.Time `json:"raisedAt,omitzero"`
	At       time.Time `json:"endedAt,omitzero"` // time of receipt
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

// newDay begins a day with the state of m, after the day before; nil: there was none.
func newDay(at time.Time, location *time.Location, journalID string, offset uint64, m *model.Model, before *Day) *Day {
	d := &Day{Version: version, Journal: journalID, Timezone: location.String(), Before: offset, Offset: offset,
		Nodes: map[string]*Node{}}
	d.Name, d.From, d.To = dayOf(at, location)
	if before != nil {
		if d.Name <= before.Name { // a change of timezone: a report of that name exists
			d.Name, _, d.To = dayOf(d.To, location)
		}
		d.From = before.To
	}
	d.Through = d.From
	for n := range m.Each() {
		fresh := &Node{Cluster: n.Cluster, Name: n.Name, Since: d.From, Present: true}
		key := n.Cluster + "\x00" + n.Name
		if before != nil && before.Nodes[key] != nil {
			was := before.Nodes[key]
			fresh.Place, fresh.Pods = was.Place, Pods{was.Pods.Stream, was.Pods.Last, 0, was.Pods.Reports}
			for key, e := range was.Ended {
				if !e.At.Before(before.From) {
					fresh.end(key, e)
				}
			}
		}
		d.Nodes[key] = fresh
	}
	return d
}

// end completes the day, or its counts until now: with the time until then, and the state of m.
func (d *Day) end(m *model.Model, at time.Time) {
	for n, in := range m.Each() {
		r := d.Nodes[n.Cluster+"\x00"+n.Name]
		r.pass(in, n.Maintenance, at)
		r.Open, r.Muted, r.Left = map[string]*Active{}, map[string]time.Time{}, map[string]string{}
		for key, f := range n.Active() {
			r.Open[key] = &Active{About: About{f.Check, f.Reason, f.Detector, f.Level, f.Subject, finding.Clip(f.Message, maxMessage),
				f.Found}, Name: nameOf(f)}
			if note := n.Notes[key]; note != nil {
				r.Muted[key] = note.MutedUntil
				if note.RaisedAt.Equal(f.Began) {
					r.Open[key].Owner = note.AcknowledgedBy
				}
			}
		}
		for key, l := range n.Leftovers {
			if !l.Gone {
				r.Left[key] = l.Subject.Kind
			}
		}
	}
}

// pass adds the time until a moment.
func (n *Node) pass(in model.Serving, maintenance, at time.Time) {
	whole := at.Sub(n.Since).Milliseconds()
	if whole <= 0 {
		return
	}
	declared := min(max(maintenance.Sub(n.Since).Milliseconds(), 0), whole)
	n.Time.Maintenance += declared
	switch in {
	case model.Available:
		n.Time.Available += whole - declared
	case model.Unavailable:
		n.Time.Unavailable += whole - declared
	default:
		n.Time.Unknown += whole - declared
	}
	n.Since = at
}

// count counts a change.
func (d *Day) count(n *model.Node, c model.Change) {
	key := n.Cluster + "\x00" + n.Name
	r := d.Nodes[key]
	if r == nil {
		r = &Node{Cluster: n.Cluster, Name: n.Name}
		d.Nodes[key] = r
	}
	switch c.What {
	case model.Passed:
		if r.Present {
			r.pass(c.In, n.Maintenance, d.Through)
			return
		}
		r.Present, r.Since = true, d.Through
		r.Joined++
	case model.LeftoverChanged:
		r.leftover(c.Type, c.Kind)
	case model.PodsEnded:
		r.pods(c.Stream, c.Pods)
	case model.Removed:
		r.Present, r.Open, r.Muted, r.Left, r.Pods.Stream, r.Pods.Last = false, nil, nil, nil, "", 0
		r.Removed++
	default:
		d.fault(r, c)
	}
}

// fault counts a change of a fault.
func (d *Day) fault(r *Node, c model.Change) {
	f, key := c.Fault, c.Fault.Key()
	if last := r.Ended[key].RaisedAt; c.What == model.Late && !last.IsZero() && last.Equal(f.Began) {
		return // it was counted when it ended
	}
	name := nameOf(f)
	if r.Faults[name] == nil && len(r.Faults) >= maxNames {
		name = counted{Check: other, Reason: other, Severity: finding.Info}
	}
	counts := counter(&r.Faults, name, Outcomes{})
	if c.What != model.Found {
		r.end(key, ended{f.Began, d.Through})
	}
	switch c.What {
	case model.Late:
		counts.Found++
		counts.Late++
	case model.Gone:
		counts.Removed++
	case model.Cleared:
		counts.Cleared++
		d.Clear.add(c.Took)
	case model.Repaired:
		counts.Repaired++
		d.Clear.add(c.Took)
	default:
		counts.Found++
		if !f.ObservedAt.IsZero() && !f.RaisedAt.IsZero() {
			d.Find.add(f.RaisedAt.Sub(f.ObservedAt)) // both from the node's clock, which may be wrong
		}
		if f.OneShot {
			counts.OneShot++
			r.end(key, ended{f.Began, d.Through})
		}
	}
}

// end records the latest end of a fault.
func (n *Node) end(key string, e ended) {
	if n.Ended == nil {
		n.Ended = map[string]ended{}
	}
	if _, ok := n.Ended[key]; ok || len(n.Ended) < maxEnded {
		n.Ended[key] = e
	}
}

// leftover counts a change of a leftover.
func (n *Node) leftover(t event.Type, kind string) {
	if n.Leftovers[kind] == nil && len(n.Leftovers) >= maxNames {
		kind = other
	}
	k := counter(&n.Leftovers, kind, LeftoverKind{})
	switch t {
	case event.LeftoverFound:
		k.Found++
	case event.LeftoverReleased:
		k.Released++
	default:
		k.Gone++
	}
}

// counter returns the entry of a map, which begins as fresh.
func counter[K comparable, C any](all *map[K]*C, name K, fresh C) *C {
	if *all == nil {
		*all = map[K]*C{}
	}
	if (*all)[name] == nil {
		(*all)[name] = &fresh
	}
	return (*all)[name]
}

// pods counts the pods that ended since the agent's previous report.
func (n *Node) pods(stream string, ended *uint64) {
	if ended == nil {
		return
	}
	p := &n.Pods
	if p.Stream != stream {
		p.Stream, p.Last = stream, 0
	}
	if *ended > p.Last {
		p.Ended += *ended - p.Last
		p.Last = *ended
	}
	p.Reports = true
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
