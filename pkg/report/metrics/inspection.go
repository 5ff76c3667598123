package metrics

import (
	"maps"
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

// inspected holds the result of the last pass. Ages keep growing while passes are skipped.
type inspected struct {
	Inspection

	at        time.Time
	completed time.Time // of the last complete pass; zero: there was none, and no age is served
}

// Inspected takes the result of a pass.
func (m *Metrics) Inspected(i Inspection) {
	i.Oldest, i.Bytes = maps.Clone(i.Oldest), maps.Clone(i.Bytes)
	m.podsEnded.Add(float64(max(i.Ended, 0)))
	m.podsLeft.Add(float64(max(i.Left, 0)))
	m.state.mu.Lock()
	defer m.state.mu.Unlock()
	last := inspected{Inspection: i, at: time.Now(), completed: m.state.last.completed}
	if i.Complete {
		last.completed = last.at
	}
	m.state.last = last
}

func (s *state) sendInspection(last inspected, send func(d *prometheus.Desc, value float64, labels ...string)) {
	for kind, age := range last.Oldest {
		send(s.oldest, (age + time.Since(last.at)).Seconds(), label(kind))
	}
	for kind, bytes := range last.Bytes {
		send(s.bytes, float64(bytes), label(kind))
	}
	if !last.completed.IsZero() {
		send(s.age, time.Since(last.completed).Seconds())
	}
}
