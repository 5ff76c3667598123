package api

import (
	"context"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/messages"
	"github.com/nodeagent/nodeagent/pkg/trace/nodefault"
	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/store"
)

const (
	maxScores  = 500       // nodes of one response
	avoidFor   = time.Hour // after an owner's miss
	avoidAge   = 5 * time.Second
	avoidLimit = 2 * time.Second // for the event center's answer
	maxAvoid   = 500             // nodes
	stormShare = 0.2             // of all nodes
)

// Nodes is the response about nodes: those that fail their pods, and the scores of the last day.
type Nodes struct {
	AsOf   time.Time         `json:"asof"`
	Faults []nodefault.Fault `json:"faults"`
	// Mass are the pools of which so many nodes fail their pods that the fault is the cluster's: their nodes have no faults.
	Mass   []string          `json:"failingPools"`
	Scores []nodefault.Score `json:"scores"` // the worst first
	Total  int               `json:"total"`  // nodes
}

// JudgeNodes looks for nodes that fail their pods, and reports changes. It must be called regularly.
func (s *Server) JudgeNodes(ctx context.Context, now time.Time) error {
	acts, err := s.Store.Recent(ctx, now, nodefault.Window)
	if err != nil {
		return err
	}
	nodes := s.Follower.NodeList()
	for i := range acts {
		acts[i].Pool = nodes[acts[i].Node].Pool
	}
	s.mu.Lock()
	active, ended, mass := s.nodes.Take(acts, now)
	s.nodeFaults = Nodes{AsOf: now, Faults: active, Mass: mass}
	s.mu.Unlock()
	for _, f := range ended {
		s.Log.Info("a node delivers pods again", "node", f.Node, "reason", f.Kind)
	}
	for _, f := range active {
		if f.Since.Equal(now) {
			s.Log.Warn("a node fails its pods", "node", f.Node, "reason", f.Kind, "misses", f.Misses, "pods", f.Acts)
		}
	}
	if s.Sender == nil {
		return nil
	}
	return s.Sender.Report(active, ended, now)
}

// NodeFaults returns the nodes that fail their pods, as of the last judgement.
func (s *Server) NodeFaults() Nodes {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodeFaults
}

// Nodes returns the nodes that fail their pods, and the scores of all.
func (s *Server) Nodes(ctx context.Context, _ url.Values) (Nodes, error) {
	answer, days := s.NodeFaults(), s.Follower.NodeList()
	answer.AsOf, answer.Faults, answer.Mass = s.Now(), append([]nodefault.Fault{}, answer.Faults...), append([]string{}, answer.Mass...)
	if err := s.Store.CountNodes(ctx, answer.AsOf, 24*time.Hour, days); err != nil {
		return answer, err
	}
	scores := nodefault.Scores(slices.AppendSeq([]nodefault.Score{}, maps.Values(days)), answer.Faults)
	answer.Scores, answer.Total = scores[:min(len(scores), maxScores)], len(scores)
	return answer, nil
}

// Avoid is the response about the nodes that new pods of an owner should avoid. A consumer that cannot read it uses all nodes.
type Avoid struct {
	AsOf  time.Time   `json:"asof"`
	Owner string      `json:"owner"` // UID of the pods' controller
	Nodes []AvoidNode `json:"nodes"`
	// Storm means that the owner's pods missed on so many nodes that these are not listed: the cause is elsewhere.
	Storm bool `json:"storm"`
	// Without is why the event center's list is left out; empty: it is not.
	Without string `json:"without,omitempty"`
}

// AvoidNode is a node to avoid.
type AvoidNode struct {
	Node    string        `json:"node"`
	Reasons []AvoidReason `json:"reasons"`
}

// AvoidReason is a fault that the event center names, or the latest miss of the owner's pods for a reason.
type AvoidReason struct {
	Check  string    `json:"check"` // of the event center; "owner": a miss
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
}

// centerList is the event center's list of this cluster.
type centerList struct {
	mu   sync.Mutex // guards last
	last Avoid      // without an owner
}

// read returns the list, asked for at most once each avoidAge.
func (c *centerList) read(ctx context.Context, from *messages.Sender, now time.Time) Avoid {
	if from == nil {
		return Avoid{Without: "there is no event center"}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if age := now.Sub(c.last.AsOf); age >= 0 && age < avoidAge {
		return c.last
	}
	var answer struct {
		StaleSince  *time.Time // without a reason from earlier event centers
		StaleReason string
		Pools       []struct {
			Cluster string
			Avoid   []AvoidNode
		}
	}
	err := from.Center.Get(context.WithoutCancel(ctx), avoidLimit, "/v1/avoid", &answer) // others wait for the same answer
	c.last = Avoid{AsOf: now}
	switch {
	case err != nil:
		c.last.Without = "the event center does not answer"
	case answer.StaleSince != nil || answer.StaleReason != "":
		c.last.Without = "the event center gets no reports"
	}
	for _, pool := range answer.Pools {
		if c.last.Without == "" && pool.Cluster == from.Cluster {
			c.last.Nodes = append(c.last.Nodes, pool.Avoid...)
		}
	}
	return c.last
}

var isUID = regexp.MustCompile(`^[0-9a-zA-Z-]{1,64}$`).MatchString

// Avoid returns the nodes that new pods of an owner should avoid.
func (s *Server) Avoid(ctx context.Context, q url.Values) (Avoid, error) {
	owner, now := q.Get("owner"), s.Now()
	answer := Avoid{AsOf: now, Owner: owner, Nodes: []AvoidNode{}}
	if !isUID(owner) {
		return answer, badRequest("owner: must be the UID of a controller of pods")
	}
	found, err := s.Store.Misses(ctx, now, avoidFor, store.Filter{Owner: owner})
	if err != nil {
		return answer, err
	}
	missed := map[string][]AvoidReason{}
	for _, m := range found {
		known := func(a AvoidReason) bool { return a.Reason == m.Reason }
		if m.Node != "" && m.Class != string(reason.User) && nodefault.KindOf(m.Act, reason.Reason(m.Reason)) != "" &&
			!slices.ContainsFunc(missed[m.Node], known) {
			missed[m.Node] = append(missed[m.Node], AvoidReason{"owner", m.Reason, m.At})
		}
	}
	center := s.center.read(ctx, s.Sender, now)
	answer.Without = center.Without
	all, _ := s.Follower.Nodes()
	if answer.Storm = len(missed) > 1 && float64(len(missed)) > stormShare*float64(all); answer.Storm {
		missed = nil
	}
	for _, n := range center.Nodes {
		answer.Nodes = append(answer.Nodes, AvoidNode{n.Node, append(slices.Clone(n.Reasons), missed[n.Node]...)})
		delete(missed, n.Node)
	}
	for node, reasons := range missed {
		answer.Nodes = append(answer.Nodes, AvoidNode{node, reasons})
	}
	slices.SortFunc(answer.Nodes, func(a, b AvoidNode) int { return strings.Compare(a.Node, b.Node) })
	answer.Nodes = answer.Nodes[:min(len(answer.Nodes), maxAvoid)]
	return answer, nil
}
