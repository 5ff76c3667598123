package api

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// collector reads the follower's counts on each scrape.
type collector struct {
	s                                                                 *Server
	pods, open, lag, texts, acts, remaining, refusals, unstored, lost *prometheus.Desc
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
		describe("terminating_pods", "Pods that are Terminating for more than 10 minutes and their grace period."),
		describe("unfollowed_refusals_total", "Events of refused owners that were not followed, because there were too many."),
		describe("unstored_verdicts", "Verdicts that wait for the store."),
		describe("lost_verdicts_total", "Verdicts that had no room to wait for the store.")})
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
	gauge(c.unstored, float64(counts.Unstored))
	to <- prometheus.MustNewConstMetric(c.lost, prometheus.CounterValue, float64(counts.Lost))
	for act, outcomes := range counts.Outcomes {
		for outcome, n := range outcomes {
			to <- prometheus.MustNewConstMetric(c.acts, prometheus.CounterValue, float64(n), string(act), string(outcome))
		}
	}
}
