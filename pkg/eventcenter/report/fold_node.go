package report

import (
	"cmp"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// newer reports whether an event about a fault is newer than the latest one.
func (n *Node) newer(key string, s stamp) bool {
	last, ok := n.Ended[key]
	if o := n.Open[key]; o != nil {
		last, ok = o.stamp, true
	}
	return !ok || last.Stream != s.Stream || last.Sequence < s.Sequence
}

// history counts a fault that was over before it was received. Its end adds no information.
func (n *Node) history(t event.Type, e foldedEvent) {
	key := e.Data.Key()
	o, last := n.Open[key], n.Ended[key]
	known := o != nil && o.RaisedAt.Equal(e.Data.RaisedAt) || last.RaisedAt.Equal(e.Data.RaisedAt) && !last.RaisedAt.IsZero()
	if t != event.FaultRaised || known {
		return
	}
	c := n.count(n.episode(e, stamp{}, time.Time{}))
	c.Found++
	c.Late++
	if o == nil {
		n.over(key, stamp{last.Stream, last.Sequence, e.Data.RaisedAt, last.At})
	}
}

// over records the latest event about an ended fault.
func (n *Node) over(key string, s stamp) {
	delete(n.Open, key)
	if n.Ended == nil {
		n.Ended = map[string]stamp{}
	}
	if _, ok := n.Ended[key]; ok || len(n.Ended) < maxActive {
		n.Ended[key] = s
	}
}

// fault counts a change of a fault.
func (d *Day) fault(n *Node, t event.Type, e foldedEvent, at stamp) {
	key := e.Data.Key()
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
		n.over(key, stamp{at.Stream, at.Sequence, o.RaisedAt, event.Later(o.At, at.At)})
	}
	switch {
	case t == event.FaultCleared && o == nil: // the raised event may still arrive, and then counts
		n.over(key, stamp{at.Stream, at.Sequence, n.Ended[key].RaisedAt, at.At})
	case t == event.FaultCleared:
	case again:
		o.Severity, o.Message = e.Data.Severity, finding.Clip(e.Data.Message, maxMessage)
		if at.Stream != "" {
			o.Stream, o.Sequence = at.Stream, at.Sequence
		}
		o.At = event.Later(o.At, at.At)
	default:
		d.begin(n, key, n.episode(e, at, d.Through), e)
	}
}

// begin counts a fault that starts now, or is over at once.
func (d *Day) begin(n *Node, key string, o *Episode, e foldedEvent) {
	c := n.count(o)
	c.Found++
	if !e.Data.ObservedAt.IsZero() && !e.Data.RaisedAt.IsZero() {
		d.Find.add(e.Data.RaisedAt.Sub(e.Data.ObservedAt)) // both from the node's clock, which may be wrong
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
		c.Late++ // no events follow
		return
	}
	n.Open[key] = o
}

const maxMessage = 300 // bytes of a fault's message that a report shows

func (n *Node) episode(e foldedEvent, at stamp, found time.Time) *Episode {
	o := &Episode{stamp: at, Check: e.Data.Check, Reason: e.Data.Reason, Detector: e.Data.Detector, Severity: e.Data.Severity,
		Subject: e.Data.Subject, Message: finding.Clip(e.Data.Message, maxMessage), Found: found}
	o.RaisedAt = e.Data.RaisedAt
	o.Name = nameOf(o.Check, o.Reason, o.Severity, o.Detector)
	return o
}

// nameOf returns the name under which a fault is counted.
func nameOf(check, reason string, severity finding.Severity, detector string) string {
	name := check + "\x00" + reason + "\x00" + string(severity)
	if detector != "" {
		name += "\x00" + detector
	}
	return name
}

func splitName(name string) (check, reason string, severity finding.Severity, detector string) {
	parts := append(strings.SplitN(name, "\x00", 4), "", "", "")
	return parts[0], parts[1], finding.Severity(parts[2]), parts[3]
}

// count returns the counter for an episode: under its severity when it was found.
func (n *Node) count(o *Episode) *FaultCount {
	c := n.Faults[o.Name]
	if c == nil && len(n.Faults) >= maxNames {
		o = &Episode{Check: other, Reason: other, Severity: finding.Info, Name: other}
		c = n.Faults[other]
	}
	if c == nil {
		check, reason, severity, detector := splitName(o.Name)
		c = &FaultCount{Check: check, Reason: cmp.Or(reason, check), Severity: cmp.Or(severity, o.Severity), Detector: detector}
		if n.Faults == nil {
			n.Faults = map[string]*FaultCount{}
		}
		n.Faults[o.Name] = c
	}
	return c
}

// leftover counts a change of a leftover.
func (n *Node) leftover(t event.Type, e foldedEvent) {
	key, kind := e.Data.Key(), e.Data.Subject.Kind
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
