package api

import (
	"context"
	"net/url"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/health"
	"github.com/nodeagent/nodeagent/pkg/trace/probe"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/trace/store"
)

// Component is a component of the control plane, with its online rate in a window.
type Component struct {
	probe.State
	// Online is good probes / (good and failed ones); null if there are too few.
	Rate  *float64 `json:"onlineRate"`
	Good  int      `json:"good"`
	Bad   int      `json:"failed"`
	Blind int      `json:"blind"` // probes that do not count
}

// Components is the response about components.
type Components struct {
	AsOf       time.Time   `json:"asof"`
	Window     string      `json:"window"`
	Components []Component `json:"components"`
}

// Components returns the state of each component, and its online rate in a window.
func (s *Server) Components(ctx context.Context, q url.Values) (Components, error) {
	now := s.Now()
	name, window, err := windowOf(q, "1d")
	answer := Components{AsOf: now, Window: name, Components: []Component{}}
	if err != nil {
		return answer, err
	}
	sums, err := s.Store.Probes(ctx, now, window)
	if err != nil {
		return answer, err
	}
	for _, state := range s.Prober.States() {
		c := Component{State: state}
		if i := slices.IndexFunc(sums, func(p store.Probed) bool {
			return p.Component == state.Component && p.Instance == state.Instance
		}); i >= 0 {
			c.Good, c.Bad, c.Blind = sums[i].Good, sums[i].Bad, sums[i].Blind
		}
		c.Rate = sli.Ratio(c.Good, c.Good+c.Bad)
		answer.Components = append(answer.Components, c)
	}
	return answer, nil
}

// Judge judges the health of the cluster now. It must be called regularly.
func (s *Server) Judge(ctx context.Context, now time.Time) {
	in := health.Inputs{}
	in.Now.Nodes, in.Now.FaultyNodes = s.Follower.Nodes()
	in.Now.Leftovers = len(s.Follower.Terminating(now, leftover))
	for _, state := range s.Prober.States() {
		in.Components = append(in.Components, health.Component{Name: state.Component, Instance: state.Instance,
			Offline: state.State == probe.Offline})
	}
	counts, err := s.Store.Count(ctx, now, sli.Windows()["5m"], store.Filter{})
	switch behind := s.Follower.Behind(now); {
	case err != nil:
		in.Blind = "the verdicts cannot be read"
	case behind < 0 && !s.offline():
		in.Blind = "the pods are not listed yet, or their watch has ended"
	case behind > blindFrom && !s.offline():
		in.Blind = "the watch is " + behind.Round(time.Second).String() + " behind"
	}
	for _, i := range sli.Add(counts) {
		if i.Act == record.Creation {
			in.Creation = &i
		}
	}
	if s.Alerts != nil {
		in.Alerts = s.Alerts()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.health = s.tracker.Take(in, now)
}

// offline reports whether an apiserver is known to be offline: then the watch has ended because of the cluster.
func (s *Server) offline() bool {
	return slices.ContainsFunc(s.Prober.States(), func(p probe.State) bool {
		return p.Component == "apiserver" && p.State == probe.Offline
	})
}

// Health returns the health of the cluster as of the last judgement.
func (s *Server) Health() health.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.health.Level == "" {
		return health.State{Level: health.Unknown, Since: s.Now(), Causes: []health.Cause{{Level: health.Unknown, Text: "not judged yet"}}}
	}
	return s.health
}
