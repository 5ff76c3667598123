package api

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeagent/nodeagent/pkg/trace/health"
	"github.com/nodeagent/nodeagent/pkg/trace/probe"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/trace/store"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
	"github.com/nodeagent/nodeagent/pkg/web"
)

// SLIs is the response about indicators.
type SLIs struct {
	AsOf   time.Time       `json:"asof"`
	Window string          `json:"window"`
	Lag    float64         `json:"lagSeconds"` // delay of the watch; -1: not running
	SLIs   []sli.Indicator `json:"slis"`
}

// SLIs returns the indicators of a window, a namespace and nodes.
func (s *Server) SLIs(ctx context.Context, q url.Values) (SLIs, error) {
	c, err := s.scopeOf(q, "5m")
	if err != nil {
		return SLIs{}, err
	}
	counts, err := s.Store.Count(ctx, c.now, c.window, c.Filter)
	return SLIs{c.now, c.name, s.Follower.Behind(c.now).Seconds(), sli.Add(counts)}, err
}

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
	c, err := s.scopeOf(q, "1d")
	if err != nil {
		return Components{}, err
	}
	sums, err := s.Store.Probes(ctx, c.now, c.window)
	answer := Components{AsOf: c.now, Window: c.name, Components: []Component{}}
	for _, state := range s.Prober.States() {
		of := Component{State: state}
		if i := slices.IndexFunc(sums, func(p probe.Count) bool {
			return p.Component == state.Component && p.Instance == state.Instance
		}); i >= 0 {
			of.Good, of.Bad, of.Blind = sums[i].Good, sums[i].Bad, sums[i].Blind
		}
		of.Rate = sli.Ratio(of.Good, of.Good+of.Bad)
		answer.Components = append(answer.Components, of)
	}
	return answer, err
}

// Judge judges the health of the cluster now. It must be called regularly. An error makes the health Unknown.
func (s *Server) Judge(ctx context.Context, now time.Time) error {
	in := health.Inputs{}
	in.Now.Nodes, in.Now.FaultyNodes = s.Follower.Nodes()
	in.Now.Leftovers = len(s.Follower.Terminating(now, ""))
	down := false // an apiserver is known to be: then the watch has ended because of the cluster
	for _, c := range s.Prober.States() {
		if c.State == probe.Offline {
			in.Offline, down = append(in.Offline, [2]string{c.Component, c.Instance}), down || c.Component == "apiserver"
		}
	}
	counts, err := s.Store.Count(ctx, now, sli.Windows()["5m"], store.Filter{})
	switch behind := s.Follower.Behind(now); {
	case err != nil:
		in.Blind = "the verdicts cannot be read"
	case behind < 0 && !down:
		in.Blind = "the pods are not listed yet, or their watch has ended"
	case behind > blindFrom && !down:
		in.Blind = "the watch is " + behind.Round(time.Second).String() + " behind"
	}
	in.Creation = new(sli.Of(counts, record.Creation))
	if s.Alerts != nil {
		in.Alerts = s.Alerts()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.health = s.tracker.Take(in, now)
	return err
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

func (s *Server) metrics() handler {
	served := web.Metrics("tracecenter", s.collect)
	return func(w http.ResponseWriter, r *http.Request, _ web.Identity) { served.ServeHTTP(w, r) }
}

// collect adds the metrics of a scrape.
func (s *Server) collect(metric web.AddMetric, _ chan<- prometheus.Metric) {
	now, counts, present := s.Now(), s.Follower.Counts(), s.Health().Level
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	nodes, faulty := s.Follower.Nodes()
	metric(gauge, "pods", "Pods that live.", float64(counts.Pods))
	metric(gauge, "open_acts", "Acts whose verdict or reason is not final.", float64(counts.Open))
	metric(gauge, "watch_lag_seconds", "How far the watch is behind; -1 if it does not run.", s.Follower.Behind(now).Seconds())
	metric(gauge, "terminating_pods", "Pods that are Terminating for more than 10 minutes and their grace period.",
		float64(len(s.Follower.Terminating(now, ""))))
	metric(counter, "unknown_texts_total", "Warnings whose text no reason knows.", float64(counts.UnknownTexts))
	metric(counter, "unfollowed_refusals_total", "Events of refused owners that were not followed, because there were too many.",
		float64(counts.UnfollowedRefusals))
	for result, n := range map[string]int{"taken": counts.Evidence, "ignored": counts.EvidenceIgnored} {
		metric(counter, "evidence_total", "Evidence of agents: taken, or ignored because it is about an unknown pod or cannot be true.", float64(n),
			"result", result)
	}
	metric(gauge, "nodes", "Nodes of the cluster.", float64(nodes))
	metric(gauge, "faulty_nodes", "Nodes that are not ready, or have the taint of a fault.", float64(faulty))
	metric(gauge, "failing_pools", "Pools of which so many nodes fail their pods that the fault is the cluster's.", float64(len(s.NodeFaults().Mass)))
	for _, state := range s.Prober.States() {
		if state.State != probe.Unclear {
			metric(gauge, "component_online", "1: online, 0: offline; absent while it cannot be told.", map[string]float64{probe.Online: 1}[state.State],
				"component", state.Component, "instance", state.Instance)
		}
	}
	for _, level := range []health.Level{health.Healthy, health.Warning, health.Fatal, health.Unknown} {
		metric(gauge, "health", "1 for the level of the cluster's health.", map[health.Level]float64{present: 1}[level], "level", string(level))
	}
	metric(gauge, "unstored_verdicts", "Verdicts that wait for the store.", float64(counts.Unstored))
	metric(counter, "lost_verdicts_total", "Verdicts that had no room to wait for the store.", float64(counts.Lost))
	acts := map[[2]string]int{}
	for of, n := range counts.Acts {
		act, outcome := string(of.Act), string(of.Outcome)
		if acts[[2]string{act, outcome}] += n; of.Outcome == verdict.Missed {
			metric(counter, "missed_total", "Misses by the reason known at their deadline, and by whose it is.", float64(n), "act", act,
				"reason", of.Reason, "class", string(of.Class))
		}
	}
	for of, n := range acts {
		metric(counter, "acts_total", "Acts by verdict.", float64(n), "act", of[0], "outcome", of[1])
	}
}
