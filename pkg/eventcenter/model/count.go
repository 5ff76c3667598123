package model

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Limits of the data that one node can make a day remember.
const (
	maxNames   = 200 // of faults, and kinds of leftovers: any more are counted under Other
	maxMessage = 300 // bytes of a fault's message that a report shows
	maxEnded   = 10  // remembered occurrences of a fault
	maxOpen    = maxActive + maxDetectors*maxOfDetector

	// Other is the name of faults and leftovers over the limit.
	Other = "(other)"
)

// Place is the location of a node, as reported by its cluster.
type Place struct{ Pool, Zone string }

// NodeDay is a node on a day.
type NodeDay struct {
	Cluster string `json:"cluster,omitempty"`
	Name    string `json:"name,omitempty"`
	Place

	Time  Time      `json:"time"`
	Since time.Time `json:"since"` // Time is counted up to this time

	Present bool `json:"present,omitempty"`
	Joined  int  `json:"joined,omitempty"` // times on this day
	Removed int  `json:"removed,omitempty"`

	Stopped     bool      `json:"stopped,omitempty"`  // its agent has reported a stop
	NotReady    bool      `json:"notReady,omitempty"` // according to the apiserver when the node was silent
	Maintenance time.Time `json:"maintenance,omitzero"`

	Open      map[string]*Episode      `json:"open,omitempty"`
	Ended     map[string][]time.Time   `json:"over,omitempty"`   // RaisedAt of each fault's latest occurrences
	Faults    map[string]*Outcomes     `json:"faults,omitempty"` // by name
	Leftovers map[string]*LeftoverKind `json:"leftovers,omitempty"`
	Find      Durations                `json:"find,omitempty"` // a finished day has them as a whole
	Clear     Durations                `json:"clear,omitempty"`
	Pods      Pods                     `json:"pods,omitzero"`

	// At the end of a day.
	Muted map[string]time.Time `json:"muted,omitempty"`
	Left  map[string]string    `json:"left,omitempty"` // kinds of the present leftovers
}

// Time is how long a node was in each state, in milliseconds.
type Time struct {
	Available   int64 `json:"available"`
	Unavailable int64 `json:"unavailable"`
	Unknown     int64 `json:"unknown"`
	Maintenance int64 `json:"maintenance"`
}

// Episode is a fault from the receipt of its start to the receipt of its end.
type Episode struct {
	Name     string           `json:"name"` // the name under which it is counted
	RaisedAt time.Time        `json:"raisedAt,omitzero"`
	Severity finding.Severity `json:"severity"`
	Subject  finding.Subject  `json:"subject"`
	Message  string           `json:"message"`
	Found    time.Time        `json:"found"`
	Repaired bool             `json:"repaired,omitempty"` // an action for it succeeded
	Owner    string           `json:"owner,omitempty"`    // the person who took it over
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

// report counts the pods that ended since the agent's previous report.
func (p *Pods) report(stream string, ended *uint64) {
	if ended == nil {
		return
	}
	if p.Stream != stream {
		p.Stream, p.Last = stream, 0
	}
	if *ended > p.Last {
		p.Ended += *ended - p.Last
		p.Last = *ended
	}
	p.Reports = true
}

// pass adds the time up to a moment, in a state.
func (d *NodeDay) pass(in serving, at time.Time) {
	whole := at.Sub(d.Since).Milliseconds()
	if whole <= 0 || !d.Present {
		return
	}
	declared := min(max(d.Maintenance.Sub(d.Since).Milliseconds(), 0), whole)
	d.Time.Maintenance += declared
	switch in {
	case available:
		d.Time.Available += whole - declared
	case unavailable:
		d.Time.Unavailable += whole - declared
	default:
		d.Time.Unknown += whole - declared
	}
	d.Since = at
}

// broken reports whether the node cannot serve according to its agent's findings: the agent taints nodes with fatal
// faults, or the Node's condition Ready is not True.
func (d *NodeDay) broken() bool {
	for _, o := range d.Open {
		if o.Severity == finding.Fatal {
			return true
		}
		if o.Subject.Kind != "node-condition" || o.Subject.Name != "Ready" {
			continue
		}
		if _, reason, _, _ := SplitName(o.Name); reason == "NodeNotReady" || reason == "NodeNotHeard" {
			return true
		}
	}
	return false
}

// change counts an event about a fault.
func (d *NodeDay) change(t event.Type, f event.Fault, now time.Time) {
	key := f.Key()
	o := d.Open[key]
	again := o != nil && o.RaisedAt.Equal(f.RaisedAt)
	if o != nil && (t == event.FaultCleared || !again || f.OneShot) {
		c := d.count(o.Name)
		if o.Repaired {
			c.Repaired++
		} else {
			c.Cleared++
		}
		d.Clear.count(now.Sub(o.Found))
		d.end(key, o.RaisedAt)
	}
	switch {
	case t == event.FaultCleared || again && f.OneShot:
	case again:
		o.Severity, o.Message = f.Severity, finding.Clip(f.Message, maxMessage)
	default:
		d.begin(key, f, now)
	}
}

// begin counts a fault that starts now, or is over at once.
func (d *NodeDay) begin(key string, f event.Fault, now time.Time) {
	o := newEpisode(f, now)
	c := d.count(o.Name)
	c.Found++
	if !f.ObservedAt.IsZero() && !f.RaisedAt.IsZero() {
		d.Find.count(f.RaisedAt.Sub(f.ObservedAt)) // both from the node's clock, which may be wrong
	}
	if f.OneShot {
		c.OneShot++
		d.end(key, f.RaisedAt)
		return
	}
	if len(d.Open) >= maxOpen {
		c.Late++
		d.end(key, f.RaisedAt)
		return
	}
	if d.Open == nil {
		d.Open = map[string]*Episode{}
	}
	d.Open[key] = o
}

// history counts an event about a fault that changes no state: the fault was over before it was received, or is over
// the limits. Its end adds no information.
func (d *NodeDay) history(t event.Type, f event.Fault) {
	key := f.Key()
	o := d.Open[key]
	known := o != nil && o.RaisedAt.Equal(f.RaisedAt) || slices.ContainsFunc(d.Ended[key], f.RaisedAt.Equal)
	if t != event.FaultRaised || known {
		return
	}
	c := d.count(nameOf(f))
	c.Found++
	c.Late++
	if o == nil {
		d.end(key, f.RaisedAt)
	}
}

// end records that a fault has ended.
func (d *NodeDay) end(key string, raisedAt time.Time) {
	delete(d.Open, key)
	if d.Ended == nil {
		d.Ended = map[string][]time.Time{}
	}
	if all := d.Ended[key]; all != nil || len(d.Ended) < maxActive {
		d.Ended[key] = append(all[max(0, len(all)-maxEnded+1):], raisedAt)
	}
}

// repaired records that an action for a fault succeeded.
func (d *NodeDay) repaired(key string) {
	if o := d.Open[key]; o != nil {
		o.Repaired = true
	}
}

// remove ends the state of a removed node.
func (d *NodeDay) remove(place Place) {
	if !d.Present {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(d.Open)) { // the same faults are over the limit after each replay
		o := d.Open[key]
		d.count(o.Name).Removed++
		d.end(key, o.RaisedAt)
	}
	d.Place, d.Present, d.Stopped, d.NotReady, d.Maintenance = place, false, false, false, time.Time{}
	d.Removed++
}

func newEpisode(f event.Fault, found time.Time) *Episode {
	return &Episode{Name: nameOf(f), RaisedAt: f.RaisedAt, Severity: f.Severity, Subject: f.Subject,
		Message: finding.Clip(f.Message, maxMessage), Found: found}
}

// nameOf returns the name under which a fault is counted: with its severity when it was found.
func nameOf(f event.Fault) string {
	name := f.Check + "\x00" + f.Reason + "\x00" + string(f.Severity)
	if f.Detector != "" {
		name += "\x00" + f.Detector
	}
	return name
}

// SplitName returns the parts of the name of a fault; the detector is empty for the node's agent.
func SplitName(name string) (check, reason string, severity finding.Severity, detector string) {
	parts := append(strings.SplitN(name, "\x00", 4), "", "", "")
	return parts[0], cmp.Or(parts[1], parts[0]), cmp.Or(finding.Severity(parts[2]), finding.Info), parts[3]
}

// count returns the counter of a fault.
func (d *NodeDay) count(name string) *Outcomes {
	if d.Faults[name] == nil && len(d.Faults) >= maxNames {
		name = Other
	}
	return entry(&d.Faults, name)
}

// entry returns the entry of a map, which begins as zero.
func entry[V any](all *map[string]*V, key string) *V {
	if *all == nil {
		*all = map[string]*V{}
	}
	if (*all)[key] == nil {
		(*all)[key] = new(V)
	}
	return (*all)[key]
}

// leftover counts a change of a leftover.
func (d *NodeDay) leftover(t event.Type, kind string) {
	if d.Leftovers[kind] == nil && len(d.Leftovers) >= maxNames {
		kind = Other
	}
	k := entry(&d.Leftovers, kind)
	switch t {
	case event.LeftoverFound:
		k.Found++
	case event.LeftoverReleased:
		k.Released++
	default:
		k.Gone++
	}
}

// Durations counts durations in seconds: exact below an hour, then in whole minutes, from two days on in whole hours.
// So their number is limited, and median and p90 over any number of days are exact for rounded values.
type Durations map[int64]int

func (d *Durations) count(length time.Duration) {
	if *d == nil {
		*d = Durations{}
	}
	s := max(0, int64(length/time.Second))
	switch {
	case s < 3600:
	case s < 48*3600:
		s -= s % 60
	default:
		s -= s % 3600
	}
	(*d)[s]++
}

// Add adds the counts of o.
func (d Durations) Add(o Durations) {
	for length, count := range o {
		d[length] += count
	}
}
