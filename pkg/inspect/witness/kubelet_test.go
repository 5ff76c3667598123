package witness

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
)

// Metrics of kubelet v1.36.3 after its first clean-up, with pods it still works on.
func TestWorkingPods(t *testing.T) {
	for _, test := range []struct {
		config, lifecycle string
		want              int
	}{
		{"orphan", "sync", 5}, {"orphan", "terminating", 5}, {"orphan", "terminated", 0},
		{"runtime_only", "sync", 5}, {"runtime_only", "terminating", 5}, {"runtime_only", "terminated", 0},
		{"desired", "sync", 0}, {"desired", "terminating", 0}, {"desired", "terminated", 0},
	} {
		text := "# HELP kubelet_working_pods [ALPHA] Number of pods the kubelet is actually running\n# TYPE " +
			"kubelet_working_pods gauge\n"
		for _, config := range []string{"desired", "orphan", "runtime_only"} {
			for _, lifecycle := range []string{"sync", "terminated", "terminating"} {
				for _, static := range []string{"", "true", "unknown"} {
					value := 0
					if config == test.config && lifecycle == test.lifecycle {
						value = map[string]int{"": 1, "true": 4}[static]
					}
					text += fmt.Sprintf("kubelet_working_pods{config=%q,lifecycle=%q,static=%q} %d\n", config,
						lifecycle, static, value)
				}
			}
		}
		counts, h := map[string]float64{}, hosttest.Host(t)
		metrics, err := kubelet.ParseMetrics(strings.NewReader(text), []string{WorkingFamily})
		if err != nil || len(metrics[WorkingFamily]) != 27 {
			t.Fatalf("%d samples, %v", len(metrics[WorkingFamily]), err)
		}
		for _, sample := range metrics[WorkingFamily] {
			counts[sample.Labels] = sample.Value
		}
		h.Kubelet.Metric = func(context.Context, string) (map[string]float64, error) { return counts, nil }
		got, err := askWorking(t.Context(), hostscan.New(t.Context(), h, hostscan.Deadline{}))
		if got != test.want || err != nil {
			t.Errorf("%s, %s: %d, %v", test.config, test.lifecycle, got, err)
		}
	}
}

func TestWorkingPodsUnknown(t *testing.T) {
	h := hosttest.Host(t)
	h.Kubelet.Metric = func(context.Context, string) (map[string]float64, error) { return nil, nil }
	if _, err := askWorking(t.Context(), hostscan.New(t.Context(), h, hostscan.Deadline{})); !errors.Is(err,
		ErrNoMetric) {
		t.Errorf("no samples: %v", err)
	}
	h.Kubelet.Metric = func(context.Context, string) (map[string]float64, error) {
		return nil, errors.New("refused")
	}
	if _, err := askWorking(t.Context(), hostscan.New(t.Context(), h, hostscan.Deadline{})); err == nil ||
		errors.Is(err, ErrNoMetric) {
		t.Errorf("refused: %v", err)
	}
	if version := askVersion(t.Context(), hostscan.New(t.Context(), h, hostscan.Deadline{})); version != "" {
		t.Errorf("version %q", version)
	}
}
