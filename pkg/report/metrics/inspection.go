package metrics

import (
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Inspection is the result of one pass over the node, besides the counts of Leftovers.
type Inspection struct {
	Complete bool                     // every object was read and evaluated
	Oldest   map[string]time.Duration // how long ago the oldest leftover or unowned object was first seen, by kind
	Bytes    map[string]uint64        // their size, by kind, as far as known
	Ended    int                      // pods that were alive in an earlier pass and have ended
	Left     int                      // how many of those have proven leftovers that the agent could release
}

// inspection holds the result of the last pass. Ages keep growing while passes are skipped.
type inspection struct {
	oldest, bytes, age *prometheus.Desc
	ended, left        prometheus.Counter

	mu        sync.Mutex // guards all below
	last      Inspection
	at        time.Time // of last
	completed time.Time // of the last complete pass; zero: there was none, and no age is served
}

func newInspection() *inspection {
	count := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
	}
	return &inspection{
		oldest: desc("leftovers_oldest_seconds", "How long the oldest object that is a leftover or unowned has been "+
			"seen.", "kind"),
		bytes: desc("leftovers_bytes", "Space that leftovers and unowned objects take, of kinds where that is known.",
			"kind"),
		age: desc("inspection_complete_age_seconds", "Time since the last inspection in which everything could be "+
			"read and evaluated. Up to five minutes are normal: while nothing changes, inspections are left out."),
		ended: count("pods_ended_total", "Pods that were alive in one inspection and not in the next."),
		left: count("pods_left_over_total", "Of the pods that ended, those that were proven to have left behind "+
			"something that the agent can release."),
	}
}

// Inspected takes the result of a pass.
func (m *Metrics) Inspected(i Inspection) { m.inspection.take(i, time.Now()) }

func (s *inspection) take(i Inspection, now time.Time) {
	i.Oldest, i.Bytes = maps.Clone(i.Oldest), maps.Clone(i.Bytes)
	s.ended.Add(float64(max(i.Ended, 0)))
	s.left.Add(float64(max(i.Left, 0)))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last, s.at = i, now; i.Complete {
		s.completed = now
	}
}

// Describe implements prometheus.Collector.
func (s *inspection) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{s.oldest, s.bytes, s.age, s.ended.Desc(), s.left.Desc()} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (s *inspection) Collect(metrics chan<- prometheus.Metric) {
	s.mu.Lock()
	last, at, completed := s.last, s.at, s.completed
	s.mu.Unlock()
	metrics <- s.ended
	metrics <- s.left
	for kind, age := range last.Oldest {
		metrics <- prometheus.MustNewConstMetric(s.oldest, prometheus.GaugeValue, (age + time.Since(at)).Seconds(),
			label(kind))
	}
	for kind, bytes := range last.Bytes {
		metrics <- prometheus.MustNewConstMetric(s.bytes, prometheus.GaugeValue, float64(bytes), label(kind))
	}
	if !completed.IsZero() {
		metrics <- prometheus.MustNewConstMetric(s.age, prometheus.GaugeValue, time.Since(completed).Seconds())
	}
}
