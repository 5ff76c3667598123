package api

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nodeagent/nodeagent/pkg/trace/health"
	"github.com/nodeagent/nodeagent/pkg/trace/probe"
)

// collector reads the metrics on each scrape.
type collector struct{ *Server }

func (s *Server) metrics() http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(collector{s})
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}

// Describe implements prometheus.Collector.
func (c collector) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, to) }

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	now, counts, present := c.Now(), c.Follower.Counts(), c.Health().Level
	// metric adds a value. labels are names, each followed by its value.
	metric := func(kind prometheus.ValueType, name, help string, value float64, labels ...string) {
		var names, values []string
		for i := 0; i < len(labels); i += 2 {
			names, values = append(names, labels[i]), append(values, labels[i+1])
		}
		to <- prometheus.MustNewConstMetric(prometheus.NewDesc("tracecenter_"+name, help, names, nil), kind, value, values...)
	}
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	nodes, faulty := c.Follower.Nodes()
	metric(gauge, "pods", "Pods that live.", float64(counts.Pods))
	metric(gauge, "open_acts", "Acts whose verdict or reason is not final.", float64(counts.Open))
	metric(gauge, "watch_lag_seconds", "How far the watch is behind; -1 if it does not run.", c.lag(now))
	metric(gauge, "terminating_pods", "Pods that are Terminating for more than 10 minutes and their grace period.",
		float64(len(c.Follower.Terminating(now, leftover))))
	metric(counter, "unknown_texts_total", "Warnings whose text no reason knows.", float64(counts.UnknownTexts))
	metric(counter, "unfollowed_refusals_total", "Events of refused owners that were not followed, because there were too many.",
		float64(counts.UnfollowedRefusals))
	for result, n := range map[string]int{"taken": counts.Evidence, "ignored": counts.EvidenceIgnored} {
		metric(counter, "evidence_total", "Evidence of agents: taken, or ignored because it is about an unknown pod or cannot be true.", float64(n),
			"result", result)
	}
	metric(gauge, "nodes", "Nodes of the cluster.", float64(nodes))
	metric(gauge, "faulty_nodes", "Nodes that are not ready, or have the taint of a fault.", float64(faulty))
	metric(gauge, "failing_pools", "Pools of which so many nodes fail their pods that the fault is the cluster's.", float64(len(c.NodeFaults().Mass)))
	for _, state := range c.Prober.States() {
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
	for miss, n := range counts.Missed {
		metric(counter, "missed_total", "Misses by the reason known at their deadline, and by whose it is.", float64(n), "act", string(miss.Act),
			"reason", string(miss.Reason), "class", string(miss.Class))
	}
	for act, outcomes := range counts.Outcomes {
		for outcome, n := range outcomes {
			metric(counter, "acts_total", "Acts by verdict.", float64(n), "act", string(act), "outcome", string(outcome))
		}
	}
}
