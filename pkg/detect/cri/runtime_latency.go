package cri

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// runtime-latency reads from kubelet's /metrics the growth in a quarter of an hour of
//
//	kubelet_runtime_operations_duration_seconds_bucket{operation_type="list_containers",le="3.0517578125"} 8151
//	kubelet_runtime_operations_duration_seconds_bucket{operation_type="run_podsandbox",le="19.073486328125"} 41
//	…,le="+Inf"                                                                                      all of them
//
// https://kubernetes.io/docs/reference/instrumentation/metrics/; kubelet measures each call of the runtime (CRI),
// failed ones too. The bounds of the buckets are 5 ms and 2.5 times the one before.
//
// Thresholds. Queries (lists, states) take milliseconds, and kubelet makes them every second: PLEG and the sync loops
// fall behind if they take three seconds. Work (sandboxes, containers) waits for disks and networks; some networks
// attach a cloud interface for ten seconds. Nineteen seconds are a third of the minute in which a pod should run.
// runtime-health measures the two calls that it makes itself and reports a runtime that does not answer at all;
// kubelet-sync reports calls that fail. Kubelets before 1.19 have other buckets, which the check ignores.

// runtimeCalls are calls of one kind, with the threshold for slow ones.
type runtimeCalls struct {
	name       string // of the subject
	reason     string
	slow       float64 // seconds: a bound of the buckets
	least      float64 // slow calls
	operations []string
}

func kindsOfCalls() []runtimeCalls {
	return []runtimeCalls{{"questions", "RuntimeQuestionsSlow", 3.0517578125, 10, []string{
		"version", "status", "list_containers", "list_podsandbox", "container_status", "podsandbox_status",
		"list_images", "image_status",
	}}, {"work", "RuntimeWorkSlow", 19.073486328125, 3, []string{
		"run_podsandbox", "stop_podsandbox", "remove_podsandbox", "create_container", "start_container",
		"remove_container",
	}}}
}

// RuntimeLatency finds a container runtime that answers kubelet late.
func RuntimeLatency() detect.Check {
	m := &latencyState{meter: checkkit.KubeletMeter{Window: 15 * time.Minute}}
	return detect.Check{
		ID:      "runtime-latency",
		Domain:  "kubernetes",
		Summary: "the container runtime answers kubelet's calls slowly",
		Advice: "Run `nodeagent check` for disk and CPU pressure, above all disk-saturation and cpu-throttling: a " +
			"slow disk below the runtime's root is the common cause. Then check for very many containers and images " +
			"(`crictl ps -a | wc -l`, `crictl images | wc -l`), and for run_podsandbox the network plugin's log.",
		Doc: detect.Doc{
			Reads: []string{"https://127.0.0.1:10250/metrics"},
			Why:   "Pods start and end late, kubelet's PLEG falls behind, and finally the node becomes NotReady.",
			Faults: []detect.Fault{
				{Reason: "RuntimeQuestionsSlow", Severity: finding.Warning,
					When: "10 % of the calls of one read-only operation in 15 minutes, at least 10, took more than 3 " +
						"s; cleared below half of that"},
				{Reason: "RuntimeWorkSlow", Severity: finding.Warning, When: "10 % of the calls of one operation on " +
					"sandboxes or containers in 15 minutes, at least 3, took more than 19 s; cleared below half of " +
					"that"},
			},
			FalseAlarms: "Image pulls, execs and stops of containers take as long as the image, the program or the " +
				"grace period, and are not counted.",
		},
		Uses:   []host.Setting{host.KubeletAPI},
		Every:  time.Minute,
		Policy: finding.Policy{Clear: finding.Hold{Runs: 2}},
		Run:    m.observe,
	}
}

type latencyState struct {
	meter checkkit.KubeletMeter
}

func (m *latencyState) observe(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	grown, _, err := m.meter.Read(ctx, h, latencyKey, "kubelet_runtime_operations_duration_seconds_bucket")
	if err != nil || grown == nil {
		return nil, err
	}
	var found []finding.Finding
	for _, calls := range kindsOfCalls() {
		found = append(found, calls.evaluate(grown, m.meter.Span())...)
	}
	return found, nil
}

// latencyKey returns the key of a bucket: the calls that were in time, or all.
func latencyKey(_ string, s kubelet.Sample) string {
	operation := s.Label("operation_type")
	for _, calls := range kindsOfCalls() {
		if !slices.Contains(calls.operations, operation) {
			continue
		}
		le := s.Label("le")
		if le == "+Inf" {
			return "all " + operation
		}
		// The bound is the product of floating point numbers.
		if bound, err := strconv.ParseFloat(le, 64); err == nil && bound > calls.slow*0.999 &&
			bound < calls.slow*1.001 {
			return "in time " + operation
		}
	}
	return ""
}

// evaluate reports the operation with the most late calls, and names the others.
func (c runtimeCalls) evaluate(grown map[string]float64, minutes time.Duration) []finding.Finding {
	worst, most := "", 0.0
	var late []string
	for _, operation := range c.operations {
		inTime, known := grown["in time "+operation]
		slow, all := grown["all "+operation]-inTime, grown["all "+operation]
		if !known || slow < c.least/2 || slow < 0.05*all {
			continue
		}
		late = append(late, operation)
		if slow > most {
			worst, most = operation, slow
		}
	}
	if worst == "" {
		return nil
	}
	all := grown["all "+worst]
	return []finding.Finding{{
		Subject: finding.Subject{Kind: "runtime-calls", Name: c.name}, Severity: finding.Warning, Reason: c.reason,
		Message: fmt.Sprintf("%.0f of kubelet's %.0f calls of %s within %s took the container runtime more than %.0f s: "+
			"check for a slow disk", most, all, worst, minutes, c.slow),
		Facts: map[string]string{"slow": checkkit.WholeNumber(most), "calls": checkkit.WholeNumber(all),
			"operation": worst, "lateOperations": strings.Join(late, ",")},
		BelowRaise: most < c.least || most < 0.1*all,
	}}
}
