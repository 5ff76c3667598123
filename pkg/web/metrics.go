package web

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// AddMetric adds the value of a metric to a scrape. labels are names, each followed by its value.
type AddMetric func(kind prometheus.ValueType, name, help string, value float64, labels ...string)

// Metrics serves registered metrics, and those that collect adds at each scrape. Their names begin with the program's.
func Metrics(
	program string, collect func(add AddMetric, to chan<- prometheus.Metric), registered ...prometheus.Collector) http.Handler {
	all := prometheus.NewRegistry()
	all.MustRegister(append(registered, prometheus.CollectorFunc(func(to chan<- prometheus.Metric) {
		collect(func(kind prometheus.ValueType, name, help string, value float64, labels ...string) {
			var names, values []string
			for i := 0; i < len(labels); i += 2 {
				names, values = append(names, labels[i]), append(values, labels[i+1])
			}
			to <- prometheus.MustNewConstMetric(prometheus.NewDesc(program+"_"+name, help, names, nil), kind, value, values...)
		}, to)
	}))...)
	return promhttp.HandlerFor(all, promhttp.HandlerOpts{})
}
