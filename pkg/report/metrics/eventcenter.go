package metrics

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// EventCenter has the figures of the connection to an event center that an Observer does not get.
type EventCenter struct {
	Quarantined int
	Bytes       int
}

// EventCenter registers figures that are read at each scrape.
func (m *Metrics) EventCenter(stats func() EventCenter) error {
	gauge := func(name, help string, value func(EventCenter) float64) error {
		return m.registry.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Subsystem: "eventcenter", Name: name,
			Help: help}, func() float64 { return value(stats()) }))
	}
	return errors.Join(
		gauge("set_aside_events", "Events that the event center will never accept, and that are kept.",
			func(s EventCenter) float64 { return float64(s.Quarantined) }),
		gauge("outbox_bytes", "What waits for the event center.",
			func(s EventCenter) float64 { return float64(s.Bytes) }))
}
