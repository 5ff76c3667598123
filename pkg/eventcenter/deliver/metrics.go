package deliver

import "github.com/prometheus/client_golang/prometheus"

// Collect sends the metrics of each subscription. Operators and registered users choose the names, never senders.
func (m *Manager) Collect(out chan<- prometheus.Metric) {
	for _, s := range m.List() {
		paused := 0.0
		if s.Paused != "" {
			paused = 1
		}
		for _, one := range []struct {
			name, help string
			kind       prometheus.ValueType
			value      float64
		}{
			{"lag_events", "Offsets of the journal beyond the cursor.", prometheus.GaugeValue, float64(s.LagEvents)},
			{"lag_seconds", "How long the oldest event that is not dealt with has waited.", prometheus.GaugeValue, s.LagSeconds},
			{"held", "Nodes that are held back because the subscriber does not take an event.", prometheus.GaugeValue,
				float64(s.Held)},
			{"dead_letters", "Events that were given up, and are kept.", prometheus.GaugeValue, float64(s.DeadLetters)},
			{"paused", "1 while it is paused, by somebody or by 410 Gone.", prometheus.GaugeValue, paused},
			{"delivered_total", "Events that the subscriber has taken.", prometheus.CounterValue, float64(s.Delivered)},
			{"failures_total", "Requests that failed.", prometheus.CounterValue, float64(s.Failed)},
			{"dead_total", "Events that became dead letters.", prometheus.CounterValue, float64(s.Dead)},
			{"dead_letters_dropped_total", "Dead letters that were dropped because there were too many.",
				prometheus.CounterValue, float64(s.Dropped)},
			{"filter_errors_total", "Events that were not sent because the CEL expression could not be evaluated.",
				prometheus.CounterValue, float64(s.FilterErrors)},
			{"missed_total", "Offsets that the subscriber will not see, as subscription.gap has told it.", prometheus.CounterValue,
				float64(s.Missed)},
		} {
			out <- prometheus.MustNewConstMetric(prometheus.NewDesc("eventcenter_subscription_"+one.name, one.help,
				[]string{"subscription"}, nil), one.kind, one.value, s.Name)
		}
	}
}
