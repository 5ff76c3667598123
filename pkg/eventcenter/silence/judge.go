// Package silence finds silent nodes: those without renewals of their Lease, those with a silent agent, and those
// without any agent. Watcher reads the cluster and writes the results into the journal; Judge decides, from
// observations alone. It uses the center's own clock. It does not judge what it cannot observe: while Leases cannot be
// listed, no node becomes silent.
package silence

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
)

const (
	// ListEvery is the interval of listing Leases.
	ListEvery = 20 * time.Second
	// lostAfter is how long a Lease may stay unchanged: two lists, whose times vary by milliseconds. Kubelet renews it
	// every 10 s.
	lostAfter = 2*ListEvery - time.Second
	// late is how long a Lease is unchanged before its node may become lost: if there are many, the cause is elsewhere.
	late = ListEvery - time.Second
	// lateWord is after how many intervals an agent is late.
	lateWord = 1.25

	// If over massShare of a cluster, and at least massNodes, become silent within massWithin, there is one finding.
	massShare  = 0.2
	massNodes  = 3
	massWithin = 2 * time.Minute
)

// Node is a Node of the cluster.
type Node struct {
	UID, Pool, Zone string
	Expected        bool // should have an agent
}

// Observation is the known state of a cluster at one moment.
type Observation struct {
	At     time.Time
	Nodes  map[string]Node
	Leases map[string]time.Time // renewal times, by kubelet's clock; nil: listing them failed
	Known  map[string]model.Known
	Whole  model.Silence // of the cluster
}

// Verdict is a change of a node's or the whole cluster's state.
type Verdict struct {
	Node string // empty: the cluster
	Type event.Type
	event.Silence
}

// Judge decides which nodes are silent. It remembers observed Leases; everything else is in the observations.
type Judge struct {
	interval time.Duration // of the agents' signs of life
	started  time.Time     // when the center became reachable
	listed   time.Time     // the latest list of Leases
	leases   map[string]lease
	calm     time.Time // since when few nodes are silent, after a finding about the cluster; zero: still many
}

// lease is the Lease of a node, by the center's clock.
type lease struct {
	renewed time.Time // by kubelet's clock; zero: no Lease
	changed time.Time // when that value was first seen
	moved   bool      // a change was observed, not only its existence
	first   time.Time // when the node was first observed, or returned
}

// NewJudge returns a judge for agents that send a sign of life in each interval to a center reachable since started.
func NewJudge(interval time.Duration, started time.Time) *Judge {
	return &Judge{interval: interval, started: started, leases: map[string]lease{}}
}

// Judge returns the changes since the state in the journal.
func (j *Judge) Judge(o Observation) []Verdict {
	fresh := j.observe(o)
	var changes, silences []Verdict
	suspects, recent := 0, 0
	for _, name := range slices.Sorted(maps.Keys(o.Nodes)) {
		known := o.Known[name]
		state, v := j.state(name, o, fresh)
		was := known.Silence.State
		switch {
		case was != model.Seen && o.At.Sub(known.Silence.ReportedAt) < massWithin && state != model.Seen:
			recent++
		case was == model.Seen && (state != model.Seen || j.suspect(name, o, fresh)):
			suspects++
		}
		switch {
		case state == was:
		case was == model.Seen:
			silences = append(silences, v)
		default:
			changes = append(changes, v)
		}
	}
	return append(changes, j.mass(o, silences, suspects+recent)...)
}

// observe takes a list of Leases. It reports whether Leases could be listed.
func (j *Judge) observe(o Observation) (fresh bool) {
	maps.DeleteFunc(j.leases, func(name string, _ lease) bool { _, ok := o.Nodes[name]; return !ok })
	if o.Leases == nil {
		return false
	}
	gap := o.At.Sub(j.listed) > 2*ListEvery+time.Second // there was no observation in between
	j.listed = o.At
	for name := range o.Nodes {
		l, known := j.leases[name]
		renewed := o.Leases[name]
		switch {
		case !known:
			l = lease{renewed, o.At, false, o.At}
		case !l.renewed.Equal(renewed):
			if o.At.Sub(l.changed) >= lostAfter {
				l.first = o.At // the node is back: its agent may still be starting
			}
			l.renewed, l.changed, l.moved = renewed, o.At, true
		case gap:
			l.changed, l.moved = o.At, false
		}
		j.leases[name] = l
	}
	return true
}

// blindFrom returns when a silent agent becomes blind. If the center was away, or the node is new, its agent may still
// be waiting for its next attempt.
func (j *Judge) blindFrom(l lease, known model.Known) time.Time {
	begun := j.started
	if l.first.After(begun) {
		begun = l.first
	}
	from := begun.Add(model.LongestRetry + j.interval)
	if !known.LastSeen.Before(begun) {
		from = time.Time{}
	}
	if spoken := known.LastSeen.Add(time.Duration(model.BlindAfter * float64(j.interval))); spoken.After(from) {
		from = spoken
	}
	return from
}

// state returns the state of a node, and the verdict if the state is new.
func (j *Judge) state(name string, o Observation, fresh bool) (model.State, Verdict) {
	known, node, l := o.Known[name], o.Nodes[name], j.leases[name]
	was := known.Silence.State
	v := Verdict{Node: name, Silence: event.Silence{LastSeen: known.LastSeen, Lease: l.renewed, UID: node.UID}}
	age := o.At.Sub(l.changed)
	spoken := !known.LastSeen.IsZero() && o.At.Sub(known.LastSeen) <= time.Duration(model.BlindAfter*float64(j.interval))
	moves := fresh && l.moved && age < lostAfter
	mute := node.Expected && !o.At.Before(j.blindFrom(l, known))
	lost := fresh && age >= lostAfter && o.At.Sub(j.started) >= j.interval && (!l.renewed.IsZero() || mute)
	switch {
	case lost:
		v.Type, v.Reason, v.Since = event.NodeLost, "LeaseUnchanged", l.changed
		v.Message = fmt.Sprintf("kubelet has not renewed its Lease for %s; %s", round(age), describeLastSeen(known, o.At))
		if l.renewed.IsZero() {
			v.Reason, v.Message = "NoLease", "the Node has no Lease; "+describeLastSeen(known, o.At)
		}
		return model.Lost, v
	case was == model.Lost && !moves:
		return was, v // no renewal of its Lease was observed yet
	case mute && moves:
		v.Type, v.Since = event.NodeBlind, known.LastSeen
		v.Reason, v.Message = "AgentSilent", "kubelet renews its Lease, and "+describeLastSeen(known, o.At)
		switch {
		case known.LastSeen.IsZero():
			v.Reason, v.Since = "NoAgent", l.first
		case known.Stopped:
			v.Reason, v.Message = "AgentStopped", v.Message+": it has said that it stops"
		}
		return model.Blind, v
	case was == model.Blind && node.Expected && !spoken:
		return was, v
	}
	v.Type, v.Reason, v.Since = event.NodeSeen, "Heard", known.Silence.Since
	v.Message = "kubelet renews its Lease; " + describeLastSeen(known, o.At)
	return model.Seen, v
}

// suspect reports whether a node may become silent next: if the cause is elsewhere, many are late at the same time.
func (j *Judge) suspect(name string, o Observation, fresh bool) bool {
	known, l := o.Known[name], j.leases[name]
	if !fresh {
		return false
	}
	wordLate := o.Nodes[name].Expected && known.LastSeen.After(j.started) &&
		o.At.Sub(known.LastSeen) > time.Duration(lateWord*float64(j.interval))
	return o.At.Sub(l.changed) >= late || wordLate
}

// mass decides how to report nodes that have become silent: each by itself, or all as one finding.
func (j *Judge) mass(o Observation, silences []Verdict, together int) []Verdict {
	many := func(n int) bool { return n >= massNodes && float64(n) > massShare*float64(len(o.Nodes)) }
	reported := o.Whole.State != model.Seen
	switch {
	case !reported && len(silences) > 0 && many(together):
		return []Verdict{{Type: event.ClusterSilent, Silence: event.Silence{Reason: "ManyNodesSilent", Since: o.At,
			Nodes: together, Message: fmt.Sprintf("%d of %d nodes are silent or late within %s: the fault is likely the "+
				"center's, the apiserver's or the network's; nodes are not reported one by one", together, len(o.Nodes),
				massWithin)}}}
	case reported && many(len(silences)):
		j.calm = time.Time{}
		return nil
	case reported:
		if j.calm.IsZero() {
			j.calm = o.At
		}
		if len(silences) > 0 && o.At.Sub(j.calm) < model.LongestRetry+j.interval {
			return nil // they may still be starting
		}
		j.calm = time.Time{}
		return append([]Verdict{{Type: event.ClusterSeen, Silence: event.Silence{Reason: "Heard", Since: o.Whole.Since,
			Nodes: len(silences), Message: "most nodes speak again; those that do not are reported one by one"}}},
			silences...)
	}
	return silences
}

func describeLastSeen(known model.Known, at time.Time) string {
	if known.LastSeen.IsZero() {
		return "its agent was never heard"
	}
	return fmt.Sprintf("its agent was heard %s ago", round(at.Sub(known.LastSeen)))
}

func round(d time.Duration) time.Duration { return d.Round(time.Second) }
