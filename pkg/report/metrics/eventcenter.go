package metrics

// EventCenter registers the figures of the connection to an event center that an Observer does not get. They are read at
// each scrape.
func (m *Metrics) EventCenter(stats func() (quarantined, bytes int)) {
	m.gauge("eventcenter", "set_aside_events", "Events that the event center will never accept, and that are kept.",
		func() float64 { quarantined, _ := stats(); return float64(quarantined) })
	m.gauge("eventcenter", "outbox_bytes", "What waits for the event center.",
		func() float64 { _, bytes := stats(); return float64(bytes) })
}
