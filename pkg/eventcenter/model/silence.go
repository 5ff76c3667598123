package model

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// State is the center's own finding about a node.
type State string

// The states. A node without any finding is Seen.
const (
	Seen  State = ""
	Blind State = "blind" // no events from its agent, while its Lease is renewed
	Lost  State = "lost"  // its Lease is not renewed
)

const (
	// BlindAfter is how many intervals an agent may be silent.
	BlindAfter = 2.5
	// LongestRetry is how long a refused agent, or one that could not reach a center, may wait before the next attempt.
	LongestRetry = 5 * time.Minute
)

// silent is the state of a cluster with so many silent nodes that the cause may be elsewhere.
const silent State = "silent"

// Silence is the center's own finding about a node or a cluster.
type Silence struct {
	State      State     `json:"state,omitempty"`
	Reason     string    `json:"reason,omitempty"`
	Message    string    `json:"message,omitempty"`
	Since      time.Time `json:"since,omitzero"`
	ReportedAt time.Time `json:"told,omitzero"`   // when the event was received
	Event      string    `json:"event"`           // its ID, from which the next event's ID is derived
	Nodes      int       `json:"nodes,omitempty"` // for a cluster: the number of silent nodes
}

// Meta is a cluster's data about a Node.
type Meta struct {
	UID  string `json:"uid,omitempty"`
	Pool string `json:"pool,omitempty"`
	Zone string `json:"zone,omitempty"`
}

// Known is the data for deciding whether a node is silent.
type Known struct {
	UID      string
	LastSeen time.Time
	Stopped  bool // its agent has reported that it stopped
	Silence  Silence
	Offset   uint64 // of the last event that changed it
}

// ClusterState is the center's own finding about a cluster.
type ClusterState struct {
	Cluster string  `json:"cluster"`
	Silence Silence `json:"silence"`
}

// shown reports whether n is a node: a cluster's own state is stored as a node without a name.
func (n *Node) shown() bool { return n.Name != "" && !n.Removed }

// own applies the center's own finding about a node or cluster, and people's events there.
func (m *Model) own(r journal.Record, known *Node) {
	t := event.Type(r.Type)
	switch t {
	case event.OperatorAcknowledged, event.OperatorMuted, event.OperatorCommented, event.OperatorMaintenance:
		m.operator(r, known)
		return
	case event.FaultCleared:
		m.expired(r, known)
		return
	}
	states := map[event.Type]State{event.NodeBlind: Blind, event.NodeLost: Lost, event.NodeSeen: Seen,
		event.NodeRemoved: Seen, event.ClusterSilent: silent, event.ClusterSeen: Seen}
	state, ok := states[t]
	var e struct {
		Time time.Time
		Data event.Silence
	}
	if !ok || json.Unmarshal(r.JSON, &e) != nil {
		return // from a newer center
	}
	var n *Node
	switch {
	case t == event.NodeRemoved:
		n = m.node(Key{r.Cluster, r.Node})
		n.Offset = r.Offset
		m.remove(n, r.ID, e.Time)
		return
	case r.Node == "":
		for _, of := range m.nodes {
			if of.Cluster == r.Cluster {
				m.pass(of)
			}
		}
		n = m.node(Key{r.Cluster, ""})
		n.Offset = r.Offset
	default:
		n = m.changing(r)
		n.Day.NotReady = t == event.NodeBlind && (e.Data.Ready == "False" || e.Data.Ready == "Unknown")
	}
	n.Silence = &Silence{Event: r.ID, ReportedAt: r.Received}
	if state != Seen {
		n.Silence = &Silence{State: state, Reason: e.Data.Reason, Message: e.Data.Message, Since: e.Data.Since,
			ReportedAt: r.Received, Event: r.ID, Nodes: e.Data.Nodes}
	}
}

// remove ends all faults and leftovers of a removed node.
func (m *Model) remove(n *Node, of string, at time.Time) {
	m.pass(n)
	if n.Day != nil {
		n.Day.remove(n.place())
	}
	i := inference{m: m, n: n, of: of, at: at}
	for _, f := range n.active() {
		i.fault(event.FaultCleared, *f)
	}
	for _, key := range slices.Sorted(maps.Keys(n.Leftovers)) {
		if l := n.Leftovers[key]; !l.Gone {
			i.leftover(event.LeftoverGone, l.Activity)
		}
	}
	*n = Node{Cluster: n.Cluster, Name: n.Name, Offset: n.Offset, Pending: n.Pending, Removed: true, Day: n.Day}
}

// Describe records a cluster's data about its Nodes, which exist. It skips a Node if the model still has an older Node
// of the same name: that one must be removed first.
func (m *Model) Describe(cluster string, nodes map[string]Meta) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, meta := range nodes {
		if n := m.nodes[Key{cluster, name}]; n != nil && (n.Meta == meta || n.UID != "" && n.UID != meta.UID) {
			continue
		}
		m.node(Key{cluster, name}).Meta = meta
	}
}

// Known returns the data about the nodes of a cluster, and about the cluster itself.
func (m *Model) Known(cluster string) (nodes map[string]Known, whole Silence) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	nodes = map[string]Known{}
	for key, n := range m.nodes {
		if key.Cluster != cluster || n.Removed {
			continue
		}
		k := Known{UID: n.UID, LastSeen: n.LastSeen, Stopped: n.AgentType == event.AgentStopping,
			Offset: n.Offset}
		if n.Silence != nil {
			k.Silence = *n.Silence
		}
		if key.Node == "" {
			whole = k.Silence
		} else {
			nodes[key.Node] = k
		}
	}
	return nodes, whole
}

// SilentClusters returns the clusters with so many silent nodes that the cause may be elsewhere.
func (m *Model) SilentClusters() []ClusterState {
	m.mu.RLock()
	defer m.mu.RUnlock()
	found := []ClusterState{}
	for _, key := range slices.SortedFunc(maps.Keys(m.nodes), Key.compare) {
		if n := m.nodes[key]; key.Node == "" && n.Silence != nil && n.Silence.State == silent {
			found = append(found, ClusterState{key.Cluster, *n.Silence})
		}
	}
	return found
}
