package api

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nodeagent/nodeagent/pkg/trace/health"
	"github.com/nodeagent/nodeagent/pkg/trace/probe"
)

// collector reads the follower's counts on each scrape.
type collector struct {
	s                                                              *Server
	pods, open, lag, texts, acts, missed, remaining, refusals      *prometheus.Desc
	nodes, faulty, online, health, unstored, lost, evidence, pools *prometheus.Desc
}

func (s *Server) metrics() http.Handler {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("tracecenter_"+name, help, labels, nil)
	}
	r := prometheus.NewRegistry()
	r.MustRegister(&collector{s, describe("pods", "Pods that live."), describe("open_acts", "Acts whose verdict or reason is not final."),
		describe("watch_lag_seconds", "How far the watch is behind; -1 if it does not run."),
		describe("unknown_texts_total", "Warnings whose text no reason knows."),
		describe("acts_total", "Acts by verdict.", "act", "outcome"),
		describe("missed_total", "Misses by the reason known at their deadline, and by whose it is.", "act", "reason", "class"),
		describe("terminating_pods", "Pods that are Terminating for more than 10 minutes and their grace period."),
		describe("unfollowed_refusals_total", "Events of refused owners that were not followed, because there were too many."),
		describe("nodes", "Nodes of the cluster."), describe("faulty_nodes", "Nodes that are not ready, or have the taint of a fault."),
		describe("component_online", "1: online, 0: offline; absent while it cannot be told.", "component", "instance"),
		describe("health", "1 for the level of the cluster's health.", "level"),
		describe("unstored_verdicts", "Verdicts that wait for the store."),
		describe("lost_verdicts_total", "Verdicts that had no room to wait for the store."),
		describe("evidence_total", "Evidence of agents: taken, or ignored because it is about an unknown pod or cannot be true.", "result"),
		describe("failing_pools", "Pools of which so many nodes fail their pods that the fault is the cluster's.")})
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, to) }

// Collect implements prometheus.Collector.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	now := c.s.Now()
	counts := c.s.Follower.Counts()
	gauge := func(d *prometheus.Desc, v float64) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	gauge(c.pods, float64(counts.Pods))
	gauge(c.open, float64(counts.Open))
	gauge(c.lag, c.s.lag(now))
	gauge(c.remaining, float64(len(c.s.Follower.Terminating(now, leftover))))
	to <- prometheus.MustNewConstMetric(c.texts, prometheus.CounterValue, float64(counts.UnknownTexts))
	to <- prometheus.MustNewConstMetric(c.refusals, prometheus.CounterValue, float64(counts.UnfollowedRefusals))
	to <- prometheus.MustNewConstMetric(c.evidence, prometheus.CounterValue, float64(counts.Evidence), "taken")
	to <- prometheus.MustNewConstMetric(c.evidence, prometheus.CounterValue, float64(counts.EvidenceIgnored), "ignored")
	nodes, faulty := c.s.Follower.Nodes()
	gauge(c.nodes, float64(nodes))
	gauge(c.faulty, float64(faulty))
	gauge(c.pools, float64(len(c.s.NodeFaults().Mass)))
	for _, state := range c.s.Prober.States() {
		if state.State != probe.Unclear {
			to <- prometheus.MustNewConstMetric(c.online, prometheus.GaugeValue, map[string]float64{probe.Online: 1}[state.State], state.Component,
				state.Instance)
		}
	}
	present := c.s.Health().Level
	for _, level := range []health.Level{health.Healthy, health.Warning, health.Fatal, health.Unknown} {
		value := 0.0
		if level == present {
			value = 1
		}
		to <- prometheus.MustNewConstMetric(c.health, prometheus.GaugeValue, value, string(level))
	}
	for miss, n := range counts.Missed {
		to <- prometheus.MustNewConstMetric(c.missed, prometheus.CounterValue, float64(n), string(miss.Act), string(miss.Reason), string(miss.Class))
	}
	gauge(c.unstored, float64(counts.Unstored))
	to <- prometheus.MustNewConstMetric(c.lost, prometheus.CounterValue, float64(counts.Lost))
	for act, outcomes := range counts.Outcomes {
		for outcome, n := range outcomes {
			to <- prometheus.MustNewConstMetric(c.acts, prometheus.CounterValue, float64(n), string(act), string(outcome))
		}
	}
}
