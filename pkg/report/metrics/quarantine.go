package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Quarantine are the objects that the agent keeps instead of deleting them.
type Quarantine struct {
	Bytes, MaxBytes uint64
	Entries         int
	Foreign         int // not the agent's
	Due             int // to be emptied within a day
	Oldest          time.Duration
}

// quarantine holds the gauges of the quarantine. They are served only after the first count: before it, 0 would be
// wrong.
type quarantine struct {
	once                                        sync.Once
	bytes, limit, entries, foreign, due, oldest prometheus.Gauge
}

func (q *quarantine) register(registry *prometheus.Registry) {
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: "quarantine", Name: name,
			Help: help})
		registry.MustRegister(g)
		return g
	}
	q.bytes = gauge("bytes", "What was moved to quarantine instead of being deleted.")
	q.limit = gauge("limit_bytes", "What may be in quarantine; more is not moved.")
	q.entries = gauge("entries", "Files and directories in quarantine.")
	q.foreign = gauge("foreign_entries",
		"Entries of the quarantine that the agent did not put there and never removes.")
	q.due = gauge("due_entries", "Entries of which it was reported that they will be removed within a day.")
	q.oldest = gauge("oldest_seconds", "How long the oldest entry has been kept, not counting time in which the "+
		"machine was off.")
}

// Quarantined sets the contents of the quarantine.
func (m *Metrics) Quarantined(q Quarantine) {
	m.quarantine.once.Do(func() { m.quarantine.register(m.registry) })
	m.quarantine.bytes.Set(float64(q.Bytes))
	m.quarantine.limit.Set(float64(q.MaxBytes))
	m.quarantine.entries.Set(float64(q.Entries))
	m.quarantine.foreign.Set(float64(q.Foreign))
	m.quarantine.due.Set(float64(q.Due))
	m.quarantine.oldest.Set(q.Oldest.Seconds())
}
