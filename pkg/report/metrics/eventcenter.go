package metrics

// EventCenter has the figures of the connection to an event center that an Observer does not get.
type EventCenter struct {
	Quarantined int
	Bytes       int
}

// EventCenter registers figures that are read at each scrape.
func (m *Metrics) EventCenter(stats func() EventCenter) {
	m.gauge("eventcenter", "set_aside_events", "Events that the event center will never accept, and that are kept.",
		func() float64 { return float64(stats().Quarantined) })
	m.gauge("eventcenter", "outbox_bytes", "What waits for the event center.",
		func() float64 { return float64(stats().Bytes) })
}
