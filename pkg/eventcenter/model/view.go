package model

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Summary is a node in a list.
type Summary struct {
	Cluster       string    `json:"cluster"`
	Node          string    `json:"node"`
	Fatal         int       `json:"fatal"` // active faults
	Warning       int       `json:"warning"`
	Info          int       `json:"info"`
	Leftovers     int       `json:"leftovers"`
	LastSeen      time.Time `json:"heard"` // when its agent last sent an event, by the center's clock
	Stopped       bool      `json:"stopped,omitempty"`
	Version       string    `json:"version"` // of its agent
	Configuration string    `json:"configuration"`
	Waiting       int       `json:"waiting"`                     // events in its outbox, as last reported
	Blind         []string  `json:"blind"`                       // checks that cannot tell
	ClockAhead    float64   `json:"clockAheadSeconds,omitempty"` // of the center's; 0: less than two minutes off
	Pool          string    `json:"pool,omitempty"`
	Zone          string    `json:"zone,omitempty"`
	Silence       *Silence  `json:"silence,omitempty"` // nil: its agent and its Lease are fine
	// State is seen, blind or lost, and Maintenance the end of a present one. At sets both.
	State       string    `json:"state"`
	Maintenance time.Time `json:"maintenanceUntil,omitzero"`
}

// NodeFault is an active fault with its node.
type NodeFault struct {
	Cluster string `json:"cluster"`
	Node    string `json:"node"`
	event.Fault
	Operator *Note `json:"operator,omitempty"` // people's notes
}

// Detail is the full state of a node.
type Detail struct {
	Summary
	Faults       []NodeFault      `json:"faults"`
	LeftoverList []event.Activity `json:"leftoverList"`
}

// Counts are the model's counters.
type Counts struct {
	Nodes, Late, Dropped uint64
	Faults               map[finding.Severity]int
	Leftovers            int
	Silent               map[State]int // nodes
	SilentClusters       int
	Odd                  map[Oddity]int // nodes
}

// Oddity is an unusual property of a node's agent.
type Oddity string

// The oddities.
const (
	OtherVersion Oddity = "other-version" // from that of most agents in its cluster
	BlindChecks  Oddity = "blind-checks"  // some checks cannot tell
	WrongClock   Oddity = "wrong-clock"   // its node's clock is off by over two minutes
)

// Oddities returns all oddities.
func Oddities() []Oddity { return []Oddity{OtherVersion, BlindChecks, WrongClock} }

// CommonVersions returns the version of most agents in each cluster. If two are equally common, the alphabetically
// later one wins. Nodes without an agent do not count.
func CommonVersions(nodes []Summary) map[string]string {
	counts, common := map[[2]string]int{}, map[string]string{}
	for _, n := range nodes {
		if n.Version != "" {
			counts[[2]string{n.Cluster, n.Version}]++
		}
	}
	for at, count := range counts {
		best := counts[[2]string{at[0], common[at[0]]}]
		if count > best || count == best && at[1] > common[at[0]] {
			common[at[0]] = at[1]
		}
	}
	return common
}

// Odd reports whether a node's agent has an oddity; common has the common version of each cluster.
func (s Summary) Odd(o Oddity, common map[string]string) bool {
	switch o {
	case OtherVersion:
		return s.Version != "" && s.Version != common[s.Cluster]
	case BlindChecks:
		return len(s.Blind) > 0
	case WrongClock:
		return s.ClockAhead != 0
	}
	return false
}

// Nodes returns the nodes of a cluster, or of all clusters if it is empty, and the offset of this state.
func (m *Model) Nodes(cluster string) (nodes []Summary, offset uint64) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	nodes = []Summary{}
	for _, key := range slices.SortedFunc(maps.Keys(m.nodes), Key.compare) {
		if (cluster == "" || cluster == key.Cluster) && m.nodes[key].shown() {
			nodes = append(nodes, m.nodes[key].summary())
		}
	}
	return nodes, m.offset
}

// At returns a summary with the fields that depend on the time, for agents that report in each interval. A node is lost
// or blind by the center's own finding; without one it is blind if its agent announced its stop, or was heard and is
// silent. An agent that was not heard since the center's start may be waiting for its next attempt. A node without an
// agent is seen.
func (m *Model) At(s Summary, now time.Time, interval time.Duration) Summary {
	from := s.LastSeen.Add(time.Duration(BlindAfter * float64(interval)))
	if s.LastSeen.Before(m.opened) {
		from = event.Later(from, m.opened.Add(LongestRetry+interval))
	}
	s.State = "seen"
	switch {
	case s.Silence != nil:
		s.State = string(s.Silence.State)
	case s.Stopped || !s.LastSeen.IsZero() && now.After(from):
		s.State = string(Blind)
	}
	if !s.Maintenance.After(now) {
		s.Maintenance = time.Time{}
	}
	return s
}

func (n *Node) summary() Summary {
	s := Summary{Cluster: n.Cluster, Node: n.Name, LastSeen: n.LastSeen, Version: n.Agent.Version,
		Configuration: n.Agent.Configuration, Waiting: n.Agent.Waiting, Blind: n.Agent.Blind, ClockAhead: n.Ahead.Seconds(),
		Stopped: n.AgentType == event.AgentStopping, Pool: n.Pool, Zone: n.Zone}
	if n.Silence != nil && n.Silence.State != Seen {
		s.Silence = n.Silence
	}
	if n.Day != nil {
		s.Maintenance = n.Day.Maintenance
	}
	for _, f := range n.active() {
		switch {
		case f.Severity == finding.Fatal:
			s.Fatal++
		case f.Severity == finding.Warning:
			s.Warning++
		default:
			s.Info++
		}
	}
	for _, l := range n.Leftovers {
		if !l.Gone {
			s.Leftovers++
		}
	}
	return s
}

// Node returns one node.
func (m *Model) Node(key Key) (d Detail, offset uint64, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	n := m.nodes[key]
	if n == nil || !n.shown() {
		return d, m.offset, false
	}
	d = Detail{Summary: n.summary(), Faults: []NodeFault{}, LeftoverList: []event.Activity{}}
	for key, f := range n.active() {
		d.Faults = append(d.Faults, n.fault(key, f))
	}
	slices.SortFunc(d.Faults, inOrder)
	for _, name := range slices.Sorted(maps.Keys(n.Leftovers)) {
		if l := n.Leftovers[name]; !l.Gone {
			d.LeftoverList = append(d.LeftoverList, l.Activity)
		}
	}
	return d, m.offset, true
}

// Faults returns the selected active faults, most severe first, and the offset of this state.
func (m *Model) Faults(wanted func(NodeFault) bool) (faults []NodeFault, offset uint64) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	faults = []NodeFault{}
	for _, n := range m.nodes {
		for key, f := range n.active() {
			if nf := n.fault(key, f); wanted(nf) {
				faults = append(faults, nf)
			}
		}
	}
	slices.SortFunc(faults, inOrder)
	return faults, m.offset
}

// inOrder puts the most severe first. Slow comparisons come last.
func inOrder(a, b NodeFault) int {
	for _, order := range []int{a.Severity.Compare(b.Severity), Key{a.Cluster, a.Node}.compare(Key{b.Cluster, b.Node}),
		cmp.Compare(a.Check, b.Check)} {
		if order != 0 {
			return order
		}
	}
	return cmp.Compare(a.Key(), b.Key())
}

func (n *Node) fault(key string, f *event.Fault) NodeFault {
	return NodeFault{n.Cluster, n.Name, *f, n.noteOf(key, *f)}
}

// Counts returns the model's counters.
func (m *Model) Counts() Counts {
	nodes, _ := m.Nodes("")
	c := Counts{Nodes: uint64(len(nodes)), Faults: map[finding.Severity]int{}, Silent: map[State]int{}, Odd: map[Oddity]int{},
		SilentClusters: len(m.SilentClusters())}
	common := CommonVersions(nodes)
	for _, s := range nodes {
		if s.Silence != nil {
			c.Silent[s.Silence.State]++
		}
		c.Faults[finding.Fatal] += s.Fatal
		c.Faults[finding.Warning] += s.Warning
		c.Faults[finding.Info] += s.Info
		c.Leftovers += s.Leftovers
		for _, o := range Oddities() {
			if s.Odd(o, common) {
				c.Odd[o]++
			}
		}
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	c.Late, c.Dropped = m.late, m.dropped
	return c
}

// LastSeen returns when any agent last sent an event, and how long the latest report of a detector holds: until its time to
// live is over, or until it was received if the fault has ended.
func (m *Model) LastSeen() (agents, detectors time.Time) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, n := range m.nodes {
		agents = event.Later(agents, n.LastSeen)
		for _, all := range n.Foreign {
			for _, f := range all {
				until := f.Received
				if !f.Gone {
					until = f.ends()
				}
				detectors = event.Later(detectors, until)
			}
		}
	}
	return agents, detectors
}
