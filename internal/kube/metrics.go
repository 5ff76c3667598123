package kube

import (
	"fmt"
	"io"

	"github.com/nodeagent/nodeagent/internal/host/kubelet"
)

// parseMetric returns the samples of one metric family from the Prometheus text format, by their label string:
//
//	# TYPE kubelet_working_pods gauge
//	kubelet_working_pods{config="orphan",lifecycle="sync",static=""} 0
//
// No sample is no error: a family that an older kubelet does not know is absent, as is one without samples yet.
func parseMetric(text io.Reader, family string) (map[string]float64, error) {
	metrics, err := kubelet.ParseMetrics(text, []string{family})
	if err != nil {
		return nil, err
	}
	samples := make(map[string]float64, len(metrics[family]))
	for _, s := range metrics[family] {
		if _, twice := samples[s.Labels]; twice {
			return nil, fmt.Errorf("metric family %s: labels given twice: %q", family, clip(s.Labels))
		}
		samples[s.Labels] = s.Value
	}
	return samples, nil
}
