package report

import (
	"cmp"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Fold makes days of the journal. It is pure but for what it is given.
type Fold struct {
	Location *time.Location
	Close    func(*Day) error // is given each day that is over, before the next begins
	Day      *Day             // nil before the first event
}

// Apply counts the next record. Its time is that of receipt, but never before what was counted.
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

// Advance counts time up to a moment, and closes the days that are over by then.
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

// next returns the day after this one: it begins as this one ends. In another timezone it may be a part of a day.
func (d *Day) next(location *time.Location) *Day {
	n := newDay(d.To, location, d.Journal, d.Offset)
	if n.Name <= d.Name { // that day has a report
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
			if last.Stream != is.Stream || last.Sequence <= is.AsOf {
				delete(is.Ended, name) // what is older comes too late by this alone
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

// apply counts a record of the day.
func (d *Day) apply(r journal.Record) {
	d.Offset, d.Events = r.Offset, d.Events+1
	own := r.Source == "/clusters/"+url.PathEscape(r.Cluster)+"/eventcenter"
	if r.Node == "" && own {
		d.cluster(r)
		return
	}
	if r.Node == "" || !own && r.Stream == "" {
		return // of no agent
	}
	e, ok := saidIn(r)
	if !ok {
		return
	}
	if own {
		d.own(r, e)
	} else {
		d.agent(r, e)
	}
}

// said is what is read of an event.
type said struct {
	Of   string `json:"inferredof"`
	Data struct {
		event.Fault
		Part   any       `json:"part"` // of a fault a text, of a snapshot a number
		Until  time.Time `json:"until"`
		By     string    `json:"by"`
		Ready  string    `json:"ready"`
		AsOf   string    `json:"asOf"`
		Stream string    `json:"asOfStream"`
		End    bool      `json:"end"`
		Pods   *uint64   `json:"podsEnded"`
	} `json:"data"`
}

func saidIn(r journal.Record) (s said, ok bool) {
	err := json.Unmarshal(r.JSON, &s)
	return s, err == nil
}

func (s said) key() string {
	return strings.Join([]string{s.Data.Check, s.Data.Subject.Kind, s.Data.Subject.Name, s.Data.Subject.UID}, "\x00")
}

// node returns a node of the day, one that is there: it may have come back under its name.
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

// cluster counts what the center has found of a cluster: that so many nodes are silent that it cannot tell.
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

// own counts what the center, or a person there, has said of a node.
func (d *Day) own(r journal.Record, e said) {
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
		if o := n.Open[e.key()]; o != nil && o.RaisedAt.Equal(e.Data.RaisedAt) {
			o.Owner = e.Data.By
		}
	case event.OperatorMuted:
		if n.Muted == nil {
			n.Muted = map[string]time.Time{}
		}
		if len(n.Muted) < maxActive {
			n.Muted[e.key()] = e.Data.Until
		}
	case event.OperatorMaintenance:
		n.Maintenance = e.Data.Until
	}
}

// remove ends all that is known of a node with it.
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
		Pods: Pods{Ended: n.Pods.Ended, Says: n.Pods.Says}}
}

// agent counts what the agent of a node has said.
func (d *Day) agent(r journal.Record, e said) {
	n := d.node(r)
	d.settle(n, d.Through)
	t := event.Type(r.Type)
	of := r.Stream
	if t == event.NodeSnapshot {
		of = cmp.Or(e.Data.Stream, r.Stream)
	}
	at := stamp{r.Stream, r.Sequence, e.Data.RaisedAt}
	late := !n.current(of, t == event.NodeSnapshot)
	switch t {
	case event.FaultRaised, event.FaultUpdated, event.FaultCleared:
		if late || r.Sequence <= n.AsOf || !n.newer(e.key(), at) {
			n.history(t, e)
			return
		}
		d.fault(n, t, e, at)
	case event.LeftoverFound, event.LeftoverReleased, event.LeftoverGone:
		if !late && r.Sequence > n.AsOf {
			n.leftover(t, e)
		}
	case event.ActionSucceeded:
		if o := n.Open[e.key()]; o != nil && !late {
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

// current reports whether a stream is the agent's of now: as model.Node does.
func (n *Node) current(stream string, now bool) bool {
	if stream == n.Stream {
		return true
	}
	if slices.Contains(n.Past, stream) || stream < n.Stream && !now {
		return false
	}
	if n.Stream != "" {
		n.Past = append(slices.Clone(n.Past), n.Stream)
		n.Past = n.Past[max(0, len(n.Past)-maxPast):]
	}
	n.Stream, n.AsOf = stream, 0
	return true
}

// newer reports whether a word on a fault is newer than the last one.
func (n *Node) newer(key string, s stamp) bool {
	last, ok := n.Ended[key]
	if o := n.Open[key]; o != nil {
		last, ok = o.stamp, true
	}
	return !ok || last.Stream != s.Stream || last.Sequence < s.Sequence
}

// history counts a fault that was over before it was received. Its end tells nothing more.
func (n *Node) history(t event.Type, e said) {
	key := e.key()
	o, last := n.Open[key], n.Ended[key]
	known := o != nil && o.RaisedAt.Equal(e.Data.RaisedAt) || last.RaisedAt.Equal(e.Data.RaisedAt) && !last.RaisedAt.IsZero()
	if t != event.FaultRaised || known {
		return
	}
	c := n.count(n.episode(e, stamp{}, time.Time{}))
	c.Found++
	c.Late++
	if o == nil {
		n.over(key, stamp{last.Stream, last.Sequence, e.Data.RaisedAt})
	}
}

// over notes the last word on a fault that is no longer there.
func (n *Node) over(key string, s stamp) {
	delete(n.Open, key)
	if n.Ended == nil {
		n.Ended = map[string]stamp{}
	}
	if _, ok := n.Ended[key]; ok || len(n.Ended) < maxActive {
		n.Ended[key] = s
	}
}

// fault counts what becomes of a fault now.
func (d *Day) fault(n *Node, t event.Type, e said, at stamp) {
	key := e.key()
	o := n.Open[key]
	again := o != nil && o.RaisedAt.Equal(e.Data.RaisedAt)
	if o != nil && (t == event.FaultCleared || !again) {
		c := n.count(o)
		if o.Repaired {
			c.Repaired++
		} else {
			c.Cleared++
		}
		d.Clear.add(d.Through.Sub(o.Found))
		n.over(key, stamp{at.Stream, at.Sequence, o.RaisedAt})
	}
	switch {
	case t == event.FaultCleared && o == nil: // that it was raised may still come, and then counts
		n.over(key, stamp{at.Stream, at.Sequence, n.Ended[key].RaisedAt})
	case t == event.FaultCleared:
	case again:
		o.Severity, o.Message = e.Data.Severity, clip(e.Data.Message)
		if at.Stream != "" {
			o.Stream, o.Sequence = at.Stream, at.Sequence
		}
	default:
		d.begin(n, key, n.episode(e, at, d.Through), e)
	}
}

// begin counts a fault that is there from now on, or is over at once.
func (d *Day) begin(n *Node, key string, o *Episode, e said) {
	c := n.count(o)
	c.Found++
	if !e.Data.ObservedAt.IsZero() && !e.Data.RaisedAt.IsZero() {
		d.Find.add(e.Data.RaisedAt.Sub(e.Data.ObservedAt)) // both by the node's clock: it may be wrong
	}
	if e.Data.OneShot {
		c.OneShot++
		n.over(key, o.stamp)
		return
	}
	if n.Open == nil {
		n.Open = map[string]*Episode{}
	}
	if len(n.Open) >= maxActive {
		c.Late++ // nobody follows it
		return
	}
	n.Open[key] = o
}

const maxMessage = 300 // bytes, of what a report shows of a fault

func clip(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxMessage)], "")
}

func (n *Node) episode(e said, at stamp, found time.Time) *Episode {
	o := &Episode{stamp: at, Check: e.Data.Check, Reason: e.Data.Reason, Severity: e.Data.Severity,
		Subject: e.Data.Subject, Message: clip(e.Data.Message), Found: found}
	o.RaisedAt = e.Data.RaisedAt
	o.Name = o.Check + "\x00" + o.Reason + "\x00" + string(o.Severity)
	return o
}

// count returns where an episode is counted: under the severity that it had when it was found.
func (n *Node) count(o *Episode) *FaultCount {
	c := n.Faults[o.Name]
	if c == nil && len(n.Faults) >= maxNames {
		o = &Episode{Check: other, Reason: other, Severity: finding.Info, Name: other}
		c = n.Faults[other]
	}
	if c == nil {
		check, rest, _ := strings.Cut(o.Name, "\x00")
		reason, severity, _ := strings.Cut(rest, "\x00")
		c = &FaultCount{Check: check, Reason: cmp.Or(reason, check), Severity: cmp.Or(finding.Severity(severity), o.Severity)}
		if n.Faults == nil {
			n.Faults = map[string]*FaultCount{}
		}
		n.Faults[o.Name] = c
	}
	return c
}

// leftover counts what becomes of a leftover.
func (n *Node) leftover(t event.Type, e said) {
	key, kind := e.key(), e.Data.Subject.Kind
	was, there := n.Left[key]
	switch {
	case t == event.LeftoverFound && !there:
		n.kind(kind).Found++
		if n.Left == nil {
			n.Left = map[string]string{}
		}
		if len(n.Left) < maxActive {
			n.Left[key] = kind
		}
	case t == event.LeftoverFound:
	case there:
		delete(n.Left, key)
		if t == event.LeftoverReleased {
			n.kind(was).Released++
		} else {
			n.kind(was).Gone++
		}
	}
}

func (n *Node) kind(name string) *LeftoverKind {
	k := n.Leftovers[name]
	if k == nil && len(n.Leftovers) >= maxNames {
		name = other
		k = n.Leftovers[name]
	}
	if k == nil {
		k = &LeftoverKind{}
		if n.Leftovers == nil {
			n.Leftovers = map[string]*LeftoverKind{}
		}
		n.Leftovers[name] = k
	}
	return k
}

// pods counts the pods that ended since the agent said so last.
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
	p.Says = true
}
