package report

import (
	"cmp"
	"encoding/json"
	"net/url"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// Fold turns the journal into days. It has no side effects except through its arguments.
type Fold struct {
	Location *time.Location
	Close    func(*Day) error // called with each finished day, before the next begins
	Day      *Day             // nil before the first event
}

// Apply counts the next record, at its time of receipt, but never before the time already counted.
func (f *Fold) Apply(r journal.Record, journalID string) error {
	if f.Day != nil && r.Offset <= f.Day.Offset {
		return nil
	}
	if f.Day == nil {
		f.Day = newDay(r.Received, f.Location, journalID, r.Offset-1)
	}
	if err := f.Advance(r.Received); err != nil {
		return err
	}
	f.Day.apply(r)
	return nil
}

// Advance counts time up to a moment, and closes the days finished by then.
func (f *Fold) Advance(now time.Time) error {
	for f.Day != nil {
		d := f.Day
		if now.Before(d.To) {
			if now.After(d.Through) {
				d.Through = now
			}
			return nil
		}
		d.end()
		if err := f.Close(d); err != nil {
			return err
		}
		f.Day = d.next(f.Location)
	}
	return nil
}

func newDay(at time.Time, location *time.Location, journalID string, before uint64) *Day {
	d := &Day{Version: version, Journal: journalID, Timezone: location.String(), Before: before, Offset: before,
		Nodes: map[string]*Node{}, Silent: map[string]bool{}}
	d.Name, d.From, d.To = dayOf(at, location)
	d.Through = d.From
	return d
}

func (d *Day) end() {
	for _, n := range d.Nodes {
		d.settle(n, d.To)
	}
	d.Through, d.Complete = d.To, true
}

// next returns the next day, beginning with this one's end state. After a change of timezone it may be part of a day.
func (d *Day) next(location *time.Location) *Day {
	n := newDay(d.To, location, d.Journal, d.Offset)
	if n.Name <= d.Name { // a report of that name exists
		n.Name, _, n.To = dayOf(n.To, location)
	}
	n.From, n.Through, n.Silent = d.To, d.To, d.Silent
	for key, was := range d.Nodes {
		if !was.Present {
			continue
		}
		is := *was
		is.Time, is.Since, is.Joined, is.Removed = Time{}, d.To, 0, 0
		is.Faults, is.Leftovers = nil, nil
		is.Pods.Ended = 0
		for name, last := range is.Ended {
			over := last.Stream != is.Stream || last.Sequence <= is.AsOf // an older event is late for this reason alone
			if !last.At.IsZero() {                                       // a detector's: see model.Foreign
				over = d.To.Sub(last.At) > 24*time.Hour
			}
			if over {
				delete(is.Ended, name)
			}
		}
		for name, until := range is.Muted {
			if until.Before(d.To) {
				delete(is.Muted, name)
			}
		}
		n.Nodes[key] = &is
	}
	return n
}

// apply counts a record of this day.
func (d *Day) apply(r journal.Record) {
	d.Offset, d.Events = r.Offset, d.Events+1
	own := r.Source == "/clusters/"+url.PathEscape(r.Cluster)+"/eventcenter"
	if r.Node == "" && own {
		d.cluster(r)
		return
	}
	var e foldedEvent
	switch {
	case r.Node == "" || json.Unmarshal(r.JSON, &e) != nil: // not about a node
	case own:
		d.own(r, e)
	case r.Stream != "":
		d.agent(r, e)
	default:
		d.detector(r, e)
	}
}

// foldedEvent is the part of an event that the fold reads.
type foldedEvent struct {
	Of   string    `json:"inferredof"`
	Time time.Time `json:"time"`
	Data struct {
		event.Fault
		Part   any       `json:"part"` // in a fault a text, in a snapshot a number
		Until  time.Time `json:"until"`
		By     string    `json:"by"`
		Ready  string    `json:"ready"`
		AsOf   string    `json:"asOf"`
		Stream string    `json:"asOfStream"`
		End    bool      `json:"end"`
		Pods   *uint64   `json:"podsEnded"`
	} `json:"data"`
}

// node returns a node of the day and marks it present: a removed node may have returned under the same name.
func (d *Day) node(r journal.Record) *Node {
	key := r.Cluster + "\x00" + r.Node
	n := d.Nodes[key]
	if n == nil {
		n = &Node{Cluster: r.Cluster, Name: r.Node, Since: d.Through}
		d.Nodes[key] = n
	}
	if !n.Present {
		n.Present, n.Since = true, d.Through
		n.Joined++
	}
	return n
}

// cluster counts the center's findings about a cluster: so many nodes are silent that their states are unknown.
func (d *Day) cluster(r journal.Record) {
	t := event.Type(r.Type)
	if t != event.ClusterSilent && t != event.ClusterSeen {
		return
	}
	for _, n := range d.Nodes {
		if n.Cluster == r.Cluster {
			d.settle(n, d.Through)
		}
	}
	d.Silent[r.Cluster] = t == event.ClusterSilent
}

// own counts events of the center itself, or of people there, about a node.
func (d *Day) own(r journal.Record, e foldedEvent) {
	t := event.Type(r.Type)
	switch t {
	case event.NodeBlind, event.NodeLost, event.NodeSeen:
		n := d.node(r)
		d.settle(n, d.Through)
		n.Lost, n.Blind = t == event.NodeLost, t == event.NodeBlind
		n.NotReady = t == event.NodeBlind && (e.Data.Ready == "False" || e.Data.Ready == "Unknown")
		return
	}
	n := d.Nodes[r.Cluster+"\x00"+r.Node]
	if n == nil || !n.Present {
		return
	}
	d.settle(n, d.Through)
	switch t {
	case event.NodeRemoved:
		d.remove(n)
	case event.FaultRaised, event.FaultCleared:
		d.fault(n, t, e, stamp{RaisedAt: e.Data.RaisedAt})
	case event.LeftoverFound, event.LeftoverGone:
		n.leftover(t, e)
	case event.OperatorAcknowledged:
		if o := n.Open[e.Data.Key()]; o != nil && o.RaisedAt.Equal(e.Data.RaisedAt) {
			o.Owner = e.Data.By
		}
	case event.OperatorMuted:
		if n.Muted == nil {
			n.Muted = map[string]time.Time{}
		}
		if len(n.Muted) < maxActive {
			n.Muted[e.Data.Key()] = e.Data.Until
		}
	case event.OperatorMaintenance:
		n.Maintenance = e.Data.Until
	}
}

// remove ends the state of a removed node.
func (d *Day) remove(n *Node) {
	for key, o := range n.Open {
		n.count(o).Removed++
		n.over(key, o.stamp)
	}
	for _, kind := range n.Left {
		n.kind(kind).Gone++
	}
	if n.Present {
		n.Removed++
	}
	*n = Node{Cluster: n.Cluster, Name: n.Name, Place: n.Place, Time: n.Time, Since: n.Since, Joined: n.Joined,
		Removed: n.Removed, Ended: n.Ended, Faults: n.Faults, Leftovers: n.Leftovers,
		Pods: Pods{Ended: n.Pods.Ended, Reports: n.Pods.Reports}}
}

// detector counts a detector's events about a node.
func (d *Day) detector(r journal.Record, e foldedEvent) {
	_, _, name, _ := event.ReadSource(r.Source)
	t := event.Type(r.Type)
	if name == "" || t != event.FaultRaised && t != event.FaultUpdated && t != event.FaultCleared {
		return
	}
	n := d.node(r)
	d.settle(n, d.Through)
	e.Data.Detector = name
	at := stamp{At: event.Earlier(e.Time, r.Received)}
	last, o := n.Ended[e.Data.Key()], n.Open[e.Data.Key()]
	if o != nil {
		last = o.stamp
	}
	if e.Data.RaisedAt.IsZero() {
		e.Data.RaisedAt = at.At
		if o != nil {
			e.Data.RaisedAt = o.RaisedAt
		}
	}
	at.RaisedAt = e.Data.RaisedAt
	if at.At.Before(last.At) {
		n.history(t, e)
		return
	}
	d.fault(n, t, e, at)
}

// agent counts the events of a node's agent.
func (d *Day) agent(r journal.Record, e foldedEvent) {
	n := d.node(r)
	d.settle(n, d.Through)
	t := event.Type(r.Type)
	of := r.Stream
	if t == event.NodeSnapshot {
		of = cmp.Or(e.Data.Stream, r.Stream)
	}
	at := stamp{Stream: r.Stream, Sequence: r.Sequence, RaisedAt: e.Data.RaisedAt}
	current, began := n.Current(of, t == event.NodeSnapshot)
	if began {
		n.AsOf = 0
	}
	late := !current
	switch t {
	case event.FaultRaised, event.FaultUpdated, event.FaultCleared:
		if late || r.Sequence <= n.AsOf || !n.newer(e.Data.Key(), at) {
			n.history(t, e)
			return
		}
		d.fault(n, t, e, at)
	case event.LeftoverFound, event.LeftoverReleased, event.LeftoverGone:
		if !late && r.Sequence > n.AsOf {
			n.leftover(t, e)
		}
	case event.ActionSucceeded:
		if o := n.Open[e.Data.Key()]; o != nil && !late {
			o.Repaired = true
		}
	case event.NodeSnapshot:
		asOf, err := strconv.ParseUint(e.Data.AsOf, 10, 64)
		if err != nil || late || asOf < n.AsOf {
			return
		}
		n.Stopped = false
		if e.Data.End {
			n.AsOf = asOf
			n.pods(of, e.Data.Pods)
		}
	case event.AgentStarted:
		n.Stopped = n.Stopped && late
	case event.AgentStopping:
		if !late {
			n.Stopped = true
			n.pods(r.Stream, e.Data.Pods)
		}
	}
}
