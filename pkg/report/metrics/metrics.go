// Package metrics keeps the numbers of the agent for Prometheus, on its own registry. It has the metrics of
// node-problem-detector (problem_counter, problem_gauge), and more detail under nodeagent_*. It opens no socket.
package metrics

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
)

// Config has the facts known at start.
type Config struct {
	Version    string
	Revision   string                       // of the source
	Conditions map[string]finding.Condition // by check, for problem_gauge
}

// Metrics is a reporter, and an observer of all other counts. All methods are safe for concurrent use and do not block.
// Labels are made valid UTF-8 and are bounded in length and number.
type Metrics struct {
	registry *prometheus.Registry
	state    *state
	reasons  *vocabulary

	problems   *prometheus.CounterVec
	durations  *prometheus.HistogramVec
	errors     *prometheus.CounterVec
	abandoned  *prometheus.CounterVec
	kmsgLost   prometheus.Counter
	writes     *prometheus.CounterVec
	queued     *prometheus.GaugeVec
	dropped    *prometheus.CounterVec
	releases   *prometheus.CounterVec
	apirequest *prometheus.CounterVec
	podsEnded  prometheus.Counter
	podsLeft   prometheus.Counter
	quarantine atomic.Pointer[Quarantine] // nil before the first count
}

const namespace = "nodeagent"

// New returns metrics on a registry of their own.
func New(c Config) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(), state: newState(c.Conditions),
		reasons: &vocabulary{limit: maxReasons, words: map[string]bool{}},
		// The name and the help text are node-problem-detector's.
		problems: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "problem_counter",
			Help: "Number of times a specific type of problem have occurred."}, []string{"reason"}),
		errors: counter("check_errors_total", "Runs of a check that could not tell.", "check"),
		abandoned: counter("check_abandoned_total",
			"Runs of a check that took longer than allowed and were abandoned.", "check"),
		kmsgLost: plainCounter("kmsg_lost_total",
			"Records of the kernel log that were overwritten before they were read."),
		podsEnded: plainCounter("pods_ended_total", "Pods that were alive in one inspection and not in the next."),
		podsLeft: plainCounter("pods_left_over_total", "Of the pods that ended, those that were proven to have left "+
			"behind something that the agent can release."),
		writes: counter("report_writes_total", "Attempts to write a report, by result: ok, error (tried again) "+
			"or rejected (not tried again).", "reporter", "result"),
		dropped: counter("outbox_dropped_total", "Reports that were dropped because too many waited.", "reporter",
			"severity"),
		releases: counter("releases_total", "Releases of leftovers, by kind and result.", "kind", "result"),
		apirequest: counter("apiserver_requests_total", "Requests to the apiserver, by HTTP status code; 0 where "+
			"there was no answer.", "verb", "resource", "code"),
		queued: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "outbox_length",
			Help: "Reports that wait to be sent."}, []string{"reporter"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "check_duration_seconds", Help: "How long a run of a check took.",
			Buckets: []float64{0.001, 0.01, 0.1, 1, 10}, // few: there are hundreds of checks on ten thousand nodes
		}, []string{"check"}),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info", Help: "Always 1; the labels say what is running.",
		ConstLabels: prometheus.Labels{"version": label(c.Version), "revision": label(c.Revision),
			"goversion": runtime.Version()},
	})
	info.Set(1)
	m.registry.MustRegister(info, m.state, m.problems, m.durations, m.errors, m.abandoned, m.kmsgLost, m.writes,
		m.queued, m.dropped, m.releases, m.apirequest, m.podsEnded, m.podsLeft,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func plainCounter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
}

// gauge registers a figure that is read at each scrape.
func (m *Metrics) gauge(subsystem, name, help string, value func() float64) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem,
		Name: name, Help: help}, value))
}

func counter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
}

// Handler serves the metrics. Serve it on an address that CheckAddress allows.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: 3,                        // a scrape costs CPU time, and there is one scraper
		ErrorHandling:       promhttp.ContinueOnError, // one odd series must not hide all others
		Registry:            m.registry,
	})
}

// Name identifies the reporter in logs and metrics.
func (m *Metrics) Name() string { return "metrics" }

// Run waits for ctx to end: metrics are only served.
func (m *Metrics) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Update takes the believed state.
func (m *Metrics) Update(state finding.State, updates []finding.Update) {
	for _, u := range updates {
		// Like node-problem-detector, count a changed finding if its reason changed, but not if only its severity did.
		if u.Kind == finding.Raised || u.Kind == finding.Changed &&
			m.state.reason(u.Finding.Key()) != u.Finding.Reason {
			m.problems.WithLabelValues(m.reasons.bound(report.Reason(u.Finding.Reason, maxLabel))).Inc()
		}
	}
	m.state.take(state)
}

// Ran counts one run of a check. NotApplicableError is not counted as an error.
func (m *Metrics) Ran(check string, took time.Duration, err error) {
	check = label(check)
	m.durations.WithLabelValues(check).Observe(took.Seconds())
	errs := m.errors.WithLabelValues(check) // start at 0, so that the first error is an increase
	if _, conclusive := errors.AsType[*finding.NotApplicableError](err); err != nil && !conclusive {
		errs.Inc()
	}
}

// Abandoned counts an abandoned run.
func (m *Metrics) Abandoned(check string) { m.abandoned.WithLabelValues(label(check)).Inc() }

// KmsgLost counts n records of the kernel log that were lost.
func (m *Metrics) KmsgLost(n int) { m.kmsgLost.Add(float64(max(n, 0))) }

// Wrote counts an attempt to write.
func (m *Metrics) Wrote(reporter, result string, _ error) {
	m.writes.WithLabelValues(label(reporter), label(result)).Inc()
}

// Queued sets how many reports are waiting.
func (m *Metrics) Queued(reporter string, length int) {
	m.queued.WithLabelValues(label(reporter)).Set(float64(length))
}

// Dropped counts reports that were dropped.
func (m *Metrics) Dropped(reporter string, severity finding.Severity, n int) {
	m.dropped.WithLabelValues(label(reporter), label(string(severity))).Add(float64(max(n, 0)))
}

// Leftover has the labels of the leftover counts.
type Leftover struct{ Kind, Verdict string }

// Leftovers sets how many objects there are of each kind and verdict. It removes other series.
func (m *Metrics) Leftovers(counts map[Leftover]int) {
	counts = maps.Clone(counts)
	m.state.mu.Lock()
	defer m.state.mu.Unlock()
	m.state.counts = counts
}

// Released counts a release.
func (m *Metrics) Released(kind, result string) {
	m.releases.WithLabelValues(label(kind), label(result)).Inc()
}

// Requested counts a request to the apiserver; code 0 means no answer. The resource must not contain names of objects.
func (m *Metrics) Requested(verb, resource string, code int) {
	m.apirequest.WithLabelValues(label(verb), label(resource), strconv.Itoa(code)).Inc()
}

var (
	_ report.Reporter = (*Metrics)(nil)
	_ report.Observer = (*Metrics)(nil)
)

// EventCenter registers the figures of the connection to an event center that an Observer does not get. They are read
// at each scrape.
func (m *Metrics) EventCenter(stats func() (quarantined, bytes int)) {
	m.gauge("eventcenter", "set_aside_events", "Events that the event center will never accept, and that are kept.",
		func() float64 {
			quarantined, _ := stats()
			return float64(quarantined)
		})
	m.gauge("eventcenter", "outbox_bytes", "What waits for the event center.",
		func() float64 {
			_, bytes := stats()
			return float64(bytes)
		})
}
