package kubernetes

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// kubelet-sync reads from kubelet's /metrics the growth in a quarter of an hour of
//
//	rest_client_requests_total{code="200",host="10.0.0.1:6443",method="GET"} 86     code <error>: no answer
//	kubelet_runtime_operations_total{operation_type="stop_podsandbox"} 2            and …_errors_total
//	kubelet_pod_worker_start_duration_seconds_bucket{le="10"} 15                    from seeing a pod to working on it
//	kubelet_pod_start_sli_duration_seconds_bucket{le="60"} 5                        from creation to all containers started,
//	                                                                                without image pulls and init containers
//
// https://kubernetes.io/docs/reference/instrumentation/metrics/.
//
// Thresholds. Apiserver: an idle kubelet makes ten requests a minute, and rolling restarts of apiservers cause a few
// failures. Starts: a minute is the usual objective of clusters, and the monitoring mixin of Kubernetes alerts there
// (KubeletPodStartUpLatencyHigh: 60 s for 15 minutes). exec_sync fails for each exec probe that fails, pull_image and
// start_container for each wrong image or command, and the status calls for each container that is gone meanwhile.

const syncLeast = 10 // errors

// KubeletSync finds a kubelet that works, but slowly or with errors.
func KubeletSync() detect.Check {
	m := &meterCheck{meter: checkkit.KubeletMeter{Window: 15 * time.Minute}}
	return detect.Check{
		ID:      "kubelet-sync",
		Domain:  "kubernetes",
		Summary: "kubelet's calls to the apiserver or the runtime fail, or its pods start slowly",
		Advice: "Apiserver: run `curl -k https://APISERVER/healthz` on the node, then check the load balancer, DNS " +
			"and (for 401) kubelet's certificate. Runtime: check `crictl info` and `journalctl -u containerd`. Slow " +
			"starts: run `nodeagent check` for disk and CPU pressure, and check the pods of the CNI and CSI plugins.",
		Doc: detect.Doc{
			Reads: []string{"https://127.0.0.1:10250/metrics, on a node at rest once in 40 minutes"},
			Why:   "The node still reports Ready, but kubelet does its work late or not at all.",
			Faults: []detect.Fault{
				{Reason: "ApiserverRequestsFail", Severity: finding.Warning,
					When: "20 % of kubelet's requests in 15 minutes, at least 10, were answered with 5xx, 401 or " +
						"not at all; in 40 minutes on a node at rest"},
				{Reason: "RuntimeOperationsFail", Severity: finding.Warning,
					When: "half of the calls of one runtime operation in 15 minutes, at least 10, failed"},
				{Reason: "PodWorkersStartLate", Severity: finding.Warning,
					When: "3 pods and 10 % of those of 15 minutes waited more than 10 s for kubelet to start " +
						"working on them"},
				{Reason: "PodsStartSlowly", Severity: finding.Warning, When: "3 pods and 10 % of those of 15 minutes " +
					"took more than a minute to start, without image pulls"},
			},
			FalseAlarms: "Failing exec probes, wrong images and wrong commands count as errors of the runtime in " +
				"kubelet's metrics; those operations are ignored. If the apiserver itself is down, every node " +
				"reports it.",
		},
		Uses:   []host.Setting{host.KubeletAPI, host.CRISocket},
		Every:  time.Minute,
		Policy: finding.Policy{Clear: finding.Hold{Runs: 2}},
		Run:    m.sync,
	}
}

// meterCheck is a check that keeps only counters of kubelet between its runs.
type meterCheck struct{ meter checkkit.KubeletMeter }

func (m *meterCheck) sync(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	grown, _, err := m.meter.Read(ctx, h, syncKey, "rest_client_requests_total", "kubelet_runtime_operations_total",
		"kubelet_runtime_operations_errors_total",
		"kubelet_pod_worker_start_duration_seconds_bucket", "kubelet_pod_start_sli_duration_seconds_bucket")
	if err != nil || grown == nil {
		return nil, err
	}
	minutes := m.meter.Span()
	found := slices.Concat(evaluateRequests(grown, minutes), evaluateOperations(h, grown, minutes),
		lateStarts{checkkit.KubeletSubject(), "worker", "10", "PodWorkersStartLate",
			"waited more than 10 s for kubelet to start working on them: kubelet is short of CPU or blocked"}.evaluate(
			grown,
			minutes),
		lateStarts{checkkit.NodeSubject(h), "start", "60", "PodsStartSlowly",
			"took more than a minute to start, image pulls not counted"}.evaluate(grown, minutes))
	return m.meter.Follow(found), nil
}

// syncKey returns the key under which a sample is counted.
func syncKey(name string, s kubelet.Sample) string {
	switch name {
	case "rest_client_requests_total":
		code := s.Label("code")
		if bad := code == "<error>" || code == "401" || len(code) == 3 && code[0] == '5'; bad {
			return "request bad " + code
		}
		return "request good"
	case "kubelet_runtime_operations_total", "kubelet_runtime_operations_errors_total":
		operation := s.Label("operation_type")
		if !slices.Contains(nodeOperations(), operation) {
			return ""
		}
		if name == "kubelet_runtime_operations_total" {
			return "all " + operation
		}
		return "failed " + operation
	case "kubelet_pod_worker_start_duration_seconds_bucket":
		return "worker " + s.Label("le")
	}
	return "start " + s.Label("le")
}

// nodeOperations are the calls of the runtime whose errors are not the pods' own.
func nodeOperations() []string {
	return []string{"run_podsandbox", "stop_podsandbox", "remove_podsandbox", "stop_container", "remove_container",
		"create_container", "list_containers", "list_podsandbox", "list_images", "status", "version", "image_fs_info"}
}

func evaluateRequests(grown map[string]float64, minutes time.Duration) []finding.Finding {
	bad, codes := 0.0, []string{}
	for key, count := range grown {
		if code, ok := strings.CutPrefix(key, "request bad "); ok && count > 0 {
			bad += count
			codes = append(codes, fmt.Sprintf("%s: %.0f", checkkit.Sanitize(code, 10), count))
		}
	}
	slices.Sort(codes)
	all := bad + grown["request good"]
	if bad < syncLeast/2 || bad < 0.1*all {
		return nil
	}
	return []finding.Finding{{
		Subject: finding.Subject{Kind: "apiserver", Name: "apiserver"}, Severity: finding.Warning,
		Reason: "ApiserverRequestsFail",
		Message: fmt.Sprintf("%.0f of kubelet's %.0f requests to the apiserver failed within %s (%s)", bad, all, minutes,
			finding.JoinFirst(codes, 5)),
		Facts:      map[string]string{"failed": checkkit.WholeNumber(bad), "requests": checkkit.WholeNumber(all)},
		BelowRaise: bad < syncLeast || bad < 0.2*all,
	}}
}

// evaluateOperations reports the operation with the most failures.
func evaluateOperations(h *host.Host, grown map[string]float64, minutes time.Duration) []finding.Finding {
	worst, bad := "", 0.0
	for _, operation := range nodeOperations() {
		if failed := grown["failed "+operation]; failed > bad && failed >= syncLeast/2 &&
			failed >= 0.25*grown["all "+operation] {
			worst, bad = operation, failed
		}
	}
	if worst == "" {
		return nil
	}
	all := grown["all "+worst]
	return []finding.Finding{{
		Subject:  finding.Subject{Kind: "container-runtime", Name: h.Paths.CRISocket},
		Severity: finding.Warning, Reason: "RuntimeOperationsFail",
		Message: fmt.Sprintf("%.0f of kubelet's %.0f calls of %s failed within %s: see `journalctl -u containerd`",
			bad, all, worst, minutes),
		Facts: map[string]string{"operation": worst, "failed": checkkit.WholeNumber(bad),
			"calls": checkkit.WholeNumber(all)}, BelowRaise: bad < syncLeast || bad < 0.5*all,
	}}
}

// lateStarts is a fault in which many pods of a histogram are above one of its bounds.
type lateStarts struct {
	subject       finding.Subject
	histogram, le string
	reason, text  string
}

func (l lateStarts) evaluate(grown map[string]float64, minutes time.Duration) []finding.Finding {
	within, known := grown[l.histogram+" "+l.le]
	all := grown[l.histogram+" +Inf"]
	slow := all - within
	if !known || slow < 2 || slow < 0.05*all {
		return nil
	}
	return []finding.Finding{{
		Subject: l.subject, Severity: finding.Warning, Reason: l.reason,
		Message:    fmt.Sprintf("%.0f of the %.0f pods that started within %s %s", slow, all, minutes, l.text),
		Facts:      map[string]string{"slow": checkkit.WholeNumber(slow), "pods": checkkit.WholeNumber(all)},
		BelowRaise: slow < 3 || slow < 0.1*all,
	}}
}
