package api

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/web"
)

// metrics are those of the center. Senders choose no label values.
type metrics struct {
	handler  http.Handler
	events   *prometheus.CounterVec
	requests *prometheus.CounterVec
	limited  *prometheus.CounterVec
	// identities counts recognized senders, by method
	identities *prometheus.CounterVec
	failed     prometheus.Counter
	// expressions counts failed evaluations of consumers' expressions
	expressions prometheus.Counter
	future      prometheus.Counter
	append      prometheus.Histogram
}

const namespace = "eventcenter"

func newMetrics(s *Server) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	}
	m := &metrics{
		events: counter("events_total", "Events by what became of them: stored, duplicate, conflict (a duplicate with "+
			"other content; the first stays), rejected, forbidden, alive (not journaled).", "result"),
		requests: counter("requests_total", "Requests by route and status.", "route", "code"),
		limited: counter("limited_total", "Requests refused because of a rate: events of one source or of all, requests "+
			"of one node; or because others were worked on for too long (busy).", "limit"),
		identities: counter("identities_total", "Requests by the cluster that vouched, how that was proven, and the result: "+
			"accepted, unreviewed (a signature alone counted: the apiserver could not be asked), or the status of the refusal.",
			"cluster", "by", "result"),
		failed: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: "append_failures_total",
			Help: "Batches that the journal could not store; their senders keep them."}),
		expressions: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: "expression_errors_total",
			Help: "Events left out of an answer because the request's CEL expression could not be evaluated."}),
		future: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: "future_events_total",
			Help: "Events whose time is over 5 minutes ahead of the center's clock."}),
		append: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: "append_seconds",
			Help: "Time until a batch is durable.", Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, 1, 5}}),
	}
	for _, result := range []string{"stored", "duplicate", "conflict", "rejected", "forbidden", "alive"} {
		m.events.WithLabelValues(result)
	}
	m.handler = web.Metrics(namespace, s.collect, m.events, m.requests, m.limited, m.identities, m.failed,
		m.expressions, m.future, m.append)
	return m
}

// label returns a status for metrics: a failure whose client has gone before the answer is none of the center.
func label(r *http.Request, status int) string {
	if status >= http.StatusInternalServerError && isGone(r) {
		return "499"
	}
	return strconv.Itoa(status)
}

// counting remembers the status of an answer.
type counting struct {
	http.ResponseWriter
	status int
}

func (c *counting) WriteHeader(status int) {
	c.status = status
	c.ResponseWriter.WriteHeader(status)
}

// Unwrap serves http.ResponseController.
func (c *counting) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// counted counts the answers of a route.
func (m *metrics) counted(pattern string, next http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := &counting{w, http.StatusOK}
		next.ServeHTTP(c, r)
		m.requests.WithLabelValues(pattern, label(r, c.status)).Inc()
	}
}

func (m *metrics) serve(w http.ResponseWriter, r *http.Request, _ web.Identity) {
	m.handler.ServeHTTP(w, r)
}

func (m *metrics) took(done journal.Appended) {
	m.events.WithLabelValues("stored").Add(float64(done.New))
	m.events.WithLabelValues("duplicate").Add(float64(done.Duplicates - done.Conflicts))
	m.events.WithLabelValues("conflict").Add(float64(done.Conflicts))
}

// collect adds the metrics of a scrape that are states.
func (s *Server) collect(add web.AddMetric, out chan<- prometheus.Metric) {
	gauge := func(name, help string, value float64, labels ...string) {
		add(prometheus.GaugeValue, name, help, value, labels...)
	}
	bounds, health, counts := s.Journal.Bounds(), s.Health(), s.Model.Counts()
	full, lost := 0.0, 0.0
	if !health.FullSince.IsZero() {
		full = 1
	}
	for _, g := range health.Gaps {
		lost += float64(g.To - g.From + 1)
	}
	gauge("start_time_seconds", "When the center was started, in seconds since 1970.", float64(s.started.Unix()))
	gauge("journal_oldest_offset", "The oldest offset that is kept.", float64(bounds.Oldest))
	gauge("journal_newest_offset", "The newest offset.", float64(bounds.Newest))
	gauge("journal_bytes", "Size of the journal's files.", float64(health.Bytes))
	gauge("journal_files", "Files of the journal, one for each day.", float64(health.Partitions))
	gauge("journal_full", "1 while the journal's disk is full and nothing is taken.", full)
	gauge("journal_lost_events", "Acknowledged events that are damaged or missing in the journal.", lost)
	gauge("model_offset", "Up to where the journal is in the model.", float64(s.Model.Offset()))
	gauge("nodes", "Nodes that are known, by their agents or by their clusters.", float64(counts.Nodes))
	gauge("silent_clusters", "Clusters so many of whose nodes are silent that these are not reported one by one.",
		float64(counts.SilentClusters))
	for _, state := range []model.State{model.Blind, model.Lost} {
		gauge("silent_nodes", "Nodes that are silent: blind (no word of the agent), lost (the Lease does not move).",
			float64(counts.Silent[state]), "state", string(state))
	}
	for _, o := range model.Oddities() {
		gauge("odd_agents", "Nodes whose agent is odd: other-version (than most of its cluster), blind-checks (it cannot tell "+
			"in some check), wrong-clock (of the node, by over two minutes).", float64(counts.Odd[o]), "oddity", string(o))
	}
	gauge("leftovers", "Leftovers of deleted pods.", float64(counts.Leftovers))
	gauge("late_events", "Events since the start that came too late to change the current state.", float64(counts.Late))
	gauge("dropped_state", "Faults and leftovers since the start beyond what is remembered of one node.",
		float64(counts.Dropped))
	gauge("subscribers", "Open streams of events.", float64(s.shares.streams.Used()))
	for _, severity := range []finding.Severity{finding.Fatal, finding.Warning, finding.Info} {
		gauge("faults", "Active faults.", float64(counts.Faults[severity]), "severity", string(severity))
	}
	if s.Deliveries == nil {
		return
	}
	if m := s.Deliveries(); m != nil { // no other replica delivers
		m.Collect(out)
	}
}
