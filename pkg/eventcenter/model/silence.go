package model

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
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

// own applies the center's own events, and people's.
func (m *Model) own(r journal.Record, known *Node) {
	if m.confirmed(r, known) {
		return
	}
	t := event.Type(r.Type)
	var e struct {
		Time time.Time
		Data event.Silence
	}
	states := map[event.Type]State{event.NodeBlind: Blind, event.NodeLost: Lost, event.NodeSeen: Seen,
		event.ClusterSilent: silent, event.ClusterSeen: Seen}
	state, ok := states[t]
	switch {
	case t == event.FaultCleared && strings.HasPrefix(r.ID, "expired-"):
		m.expired(r, known)
	case t == event.OperatorAcknowledged, t == event.OperatorMuted, t == event.OperatorCommented, t == event.OperatorMaintenance:
		m.operator(r, known)
	case json.Unmarshal(r.JSON, &e) != nil: // from a newer center
	case t == event.NodeRemoved && known != nil && !known.Removed:
		m.remove(m.changing(r), r.ID, e.Time)
	case ok && r.Node == "":
		for _, n := range m.nodes {
			if n.Cluster == r.Cluster && n.shown() {
				m.passed(n)
			}
		}
		n := m.node(Key{r.Cluster, ""})
		n.Offset, n.Silence = r.Offset, silenceOf(state, r, e.Data)
	case ok:
		n := m.changing(r)
		n.Silence = silenceOf(state, r, e.Data)
		n.NotReady = state == Blind && (e.Data.Ready == "False" || e.Data.Ready == "Unknown")
	}
}

func silenceOf(state State, r journal.Record, s event.Silence) *Silence {
	if state == Seen {
		return &Silence{Event: r.ID, ReportedAt: r.Received}
	}
	return &Silence{State: state, Reason: s.Reason, Message: s.Message, Since: s.Since, ReportedAt: r.Received, Event: r.ID,
		Nodes: s.Nodes}
}

// remove ends all faults and leftovers of a removed node.
func (m *Model) remove(n *Node, of string, at time.Time) {
	n.Pending = nil
	for _, f := range n.Active() {
		m.infer(n, event.FaultCleared, f.Fault, of, at, false)
		m.count(n, Change{What: Gone, Fault: f})
	}
	for _, l := range n.Leftovers {
		if !l.Gone {
			m.inferLeftover(n, event.LeftoverGone, l.Activity, of, at, false)
			m.count(n, Change{What: LeftoverChanged, Type: event.LeftoverGone, Kind: l.Subject.Kind})
		}
	}
	m.count(n, Change{What: Removed})
	*n = Node{Cluster: n.Cluster, Name: n.Name, Offset: n.Offset, Pending: n.Pending, Removed: true}
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
	for _, key := range slices.SortedFunc(maps.Keys(m.nodes), Key.Compare) {
		if n := m.nodes[key]; key.Node == "" && n.Silence != nil && n.Silence.State == silent {
			found = append(found, ClusterState{key.Cluster, *n.Silence})
		}
	}
	return found
}
