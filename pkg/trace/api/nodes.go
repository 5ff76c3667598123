package api

import (
	"context"
	"maps"
	"net/url"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/nodefault"
)

const maxScores = 500 // nodes of one response

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
	answer := s.nodeFaults
	if answer.Faults == nil {
		answer.Faults = []nodefault.Fault{}
	}
	if answer.Mass == nil {
		answer.Mass = []string{}
	}
	return answer
}

// Nodes returns the nodes that fail their pods, and the scores of all.
func (s *Server) Nodes(ctx context.Context, _ url.Values) (Nodes, error) {
	answer, days := s.NodeFaults(), s.Follower.NodeList()
	answer.AsOf = s.Now()
	if err := s.Store.CountNodes(ctx, answer.AsOf, 24*time.Hour, days); err != nil {
		return answer, err
	}
	scores := nodefault.Scores(slices.Collect(maps.Values(days)), answer.Faults)
	answer.Scores, answer.Total = scores[:min(len(scores), maxScores)], len(scores)
	return answer, nil
}
