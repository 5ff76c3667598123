package metrics

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
)

// state collects the gauges of the believed state. Each scrape reads one snapshot, so an ended series is gone, and the
// series of a scrape are consistent.
type state struct {
	checksOf map[string][]string          // by condition type, node-problem-detector's vocabulary
	namings  map[string]finding.Condition // by condition type
	expected map[string][]string          // reasons shown as 0 while absent, by condition type
	status   *prometheus.Desc
	findings *prometheus.Desc
	problem  *prometheus.Desc
	objects  *prometheus.Desc
	oldest   *prometheus.Desc
	bytes    *prometheus.Desc
	age      *prometheus.Desc

	mu     sync.Mutex // guards all below; the maps are replaced, never changed
	checks map[string]check
	gauges map[string]problem // by condition type
	counts map[Leftover]int
	last   inspected
}

// check has the shown values of one check.
type check struct {
	status   finding.Status
	findings map[finding.Severity]int
	reasons  map[finding.Key]string
}

// problem is the one series of a condition type.
type problem struct {
	reason string
	value  float64
}

func newState(namings map[string]finding.Condition) *state {
	s := &state{
		checksOf: map[string][]string{}, namings: map[string]finding.Condition{},
		status:   desc("check_status", "Whether a check has this status (1) or another (0).", "check", "status"),
		findings: desc("findings", "Problems that are believed to exist now.", "check", "severity"),
		objects: desc("leftovers", "Objects on the node, by the verdict of the last inspection.", "kind",
			"verdict"),
		problem: prometheus.NewDesc("problem_gauge",
			"Whether a specific type of problem is affecting the node or not.", []string{"type", "reason"}, nil),
		oldest: desc("leftovers_oldest_seconds", "How long the oldest object that is a leftover or unowned has been "+
			"seen.", "kind"),
		bytes: desc("leftovers_bytes", "Space that leftovers and unowned objects take, of kinds where that is known.",
			"kind"),
		age: desc("inspection_complete_age_seconds", "Time since the last inspection in which everything could be "+
			"read and evaluated. Up to five minutes are normal: while nothing changes, inspections are left out."),
	}
	for _, id := range slices.Sorted(maps.Keys(namings)) {
		n := namings[id]
		if name := cmp.Or(n.Type, n.ReadyType); name != "" {
			s.checksOf[name], s.namings[name] = append(s.checksOf[name], id), n
		}
	}
	return s
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(namespace+"_"+name, help, labels, nil)
}

// take replaces the snapshot by a copy of the believed state.
func (s *state) take(believed finding.State) {
	checks := make(map[string]check, len(believed))
	for id, c := range believed {
		checks[id] = summary(c)
	}
	gauges := make(map[string]problem, len(s.checksOf))
	for name, ids := range s.checksOf {
		states := make([]*finding.CheckState, 0, len(ids))
		for _, id := range ids {
			states = append(states, believed[id])
		}
		v := report.Evaluate(s.namings[name], states...)
		if v.Status == finding.StatusNotApplicable {
			continue
		}
		p := problem{reason: report.Reason(v.Reason, maxLabel)}
		if v.Status == finding.StatusFaulty {
			p.value = 1
		}
		gauges[name] = p
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checks, s.gauges = checks, gauges
}

func summary(c *finding.CheckState) check {
	sum := check{status: c.Status}
	for _, b := range c.Subjects {
		if b.IsRaised() {
			if sum.findings == nil { // most checks have none, and this runs after every run of a check
				sum.findings, sum.reasons = map[finding.Severity]int{}, map[finding.Key]string{}
			}
			sum.findings[b.Severity]++
			sum.reasons[b.Key()] = b.Reason
		}
	}
	return sum
}

// reason returns the reason of a finding in the snapshot; empty if it is not there.
func (s *state) reason(k finding.Key) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.checks[k.Check].reasons[k]
}

// Describe implements prometheus.Collector.
func (s *state) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{s.status, s.findings, s.problem, s.objects, s.oldest, s.bytes, s.age} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (s *state) Collect(metrics chan<- prometheus.Metric) {
	s.mu.Lock()
	checks, gauges, counts, last := s.checks, s.gauges, s.counts, s.last
	s.mu.Unlock()
	send := func(d *prometheus.Desc, value float64, labels ...string) {
		m, err := prometheus.NewConstMetric(d, prometheus.GaugeValue, value, labels...)
		if err != nil {
			m = prometheus.NewInvalidMetric(d, err)
		}
		metrics <- m
	}
	for id, c := range checks {
		for _, status := range []finding.Status{finding.StatusUnknown, finding.StatusHealthy, finding.StatusFaulty,
			finding.StatusNotApplicable} {
			value := 0.0
			if c.status == status {
				value = 1
			}
			send(s.status, value, label(id), string(status))
		}
		for _, severity := range []finding.Severity{finding.Fatal, finding.Warning, finding.Info} {
			send(s.findings, float64(c.findings[severity]), label(id), string(severity))
		}
	}
	for name, p := range gauges {
		send(s.problem, p.value, label(name), p.reason)
		for _, reason := range s.expected[name] {
			if reason != p.reason {
				send(s.problem, 0, label(name), reason)
			}
		}
	}
	for l, n := range counts {
		send(s.objects, float64(n), label(l.Kind), label(l.Verdict))
	}
	s.sendInspection(last, send)
}
