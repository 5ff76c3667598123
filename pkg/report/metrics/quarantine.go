package metrics

import "time"

// Quarantine are the objects that the agent keeps instead of deleting them.
type Quarantine struct {
	Bytes, MaxBytes uint64
	Entries         int
	Foreign         int // not the agent's
	Due             int // to be emptied within a day
	Oldest          time.Duration
}

// Quarantined sets the contents of the quarantine. Its gauges are served only after the first count: before it, 0 would
// be wrong.
func (m *Metrics) Quarantined(q Quarantine) {
	if m.quarantine.Swap(&q) != nil {
		return
	}
	for _, g := range []struct {
		name, help string
		value      func(*Quarantine) float64
	}{
		{"bytes", "What was moved to quarantine instead of being deleted.",
			func(q *Quarantine) float64 { return float64(q.Bytes) }},
		{"limit_bytes", "What may be in quarantine; more is not moved.",
			func(q *Quarantine) float64 { return float64(q.MaxBytes) }},
		{"entries", "Files and directories in quarantine.",
			func(q *Quarantine) float64 { return float64(q.Entries) }},
		{"foreign_entries", "Entries of the quarantine that the agent did not put there and never removes.",
			func(q *Quarantine) float64 { return float64(q.Foreign) }},
		{"due_entries", "Entries of which it was reported that they will be removed within a day.",
			func(q *Quarantine) float64 { return float64(q.Due) }},
		{"oldest_seconds", "How long the oldest entry has been kept, not counting time in which the machine was off.",
			func(q *Quarantine) float64 { return q.Oldest.Seconds() }},
	} {
		m.gauge("quarantine", g.name, g.help, func() float64 { return g.value(m.quarantine.Load()) })
	}
}
