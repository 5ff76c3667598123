package model

import (
	"iter"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Change is a change of a node's state, for reports.
type Change struct {
	What   What
	In     Serving       // Passed
	Fault  *Fault        // of Found to Gone
	Took   time.Duration // Cleared, Repaired: from its start
	Type   event.Type    // LeftoverChanged
	Kind   string        // LeftoverChanged
	Stream string        // PodsEnded
	Pods   *uint64       // PodsEnded: how many, in this stream; nil: not counted
}

// What says what has changed.
type What int

// The changes.
const (
	Passed   What = iota // the time until now, in a state; a node that did not exist exists now
	Found                // a fault; a one-shot one is over at once
	Late                 // a fault that is over already, or beyond the limits
	Cleared              // a fault, by itself
	Repaired             // a fault, after an action succeeded
	Gone                 // a fault, with its node
	LeftoverChanged
	PodsEnded
	Removed // the node
)

// Serving is whether a node can serve.
type Serving int

// The states. A known fault counts even if its agent has been silent since.
const (
	Available Serving = iota
	Unavailable
	Unknown
)

func (m *Model) count(n *Node, c Change) {
	if m.Count != nil {
		m.Count(n, c)
	}
}

// passed counts the time of a node before its state changes.
func (m *Model) passed(n *Node) {
	if m.Count != nil {
		m.Count(n, Change{What: Passed, In: m.serving(n)})
	}
}

func (m *Model) serving(n *Node) Serving {
	whole := m.nodes[Key{n.Cluster, ""}]
	state := Seen
	if n.Silence != nil {
		state = n.Silence.State
	}
	switch {
	case state == Lost || n.NotReady || n.broken():
		return Unavailable
	case state == Blind || n.Stopped || whole != nil && whole.Silence != nil && whole.Silence.State == silent:
		return Unknown
	}
	return Available
}

// broken reports whether the node cannot serve according to its faults: its agent taints it for fatal ones, or its
// condition Ready is not True.
func (n *Node) broken() bool {
	for _, f := range n.Active() {
		ready := f.Subject.Kind == "node-condition" && f.Subject.Name == "Ready"
		if f.Level == finding.Fatal || ready && (f.FoundFor == "NodeNotReady" || f.FoundFor == "NodeNotHeard") {
			return true
		}
	}
	return false
}

// Each yields all nodes with their present states. Nothing may be applied meanwhile.
func (m *Model) Each() iter.Seq2[*Node, Serving] {
	return func(yield func(*Node, Serving) bool) {
		for _, n := range m.nodes {
			if n.shown() && !yield(n, m.serving(n)) {
				return
			}
		}
	}
}
