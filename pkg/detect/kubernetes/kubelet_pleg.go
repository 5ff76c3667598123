package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// kubelet-pleg reads of kubelet's /metrics
//
//	kubelet_pleg_last_seen_seconds 1.795242986e+09                   by the wall clock, when a relist succeeded last
//	kubelet_pleg_relist_duration_seconds_bucket{le="10"} 91          also le="+Inf"; all relists, failed ones too
//	kubelet_evented_pleg_connection_success_count 0                  above 0: the runtime sends events (EventedPLEG)
//
// The pod lifecycle event generator lists all containers of the runtime each second (each 300 s if the runtime sends
// events) and so drives all of kubelet's work. After 3 minutes without a success (10 with events: then only the count
// of relists shows it), kubelet itself reports "PLEG is not healthy", becomes NotReady and no longer changes pods
// (genericPlegRelistThreshold in pkg/kubelet/kubelet.go, Healthy in pkg/kubelet/pleg/generic.go).
//
// https://kubernetes.io/docs/reference/instrumentation/metrics/.
//
// Kubelet's /metrics hang if the runtime does: one of its collectors lists the containers' logs over CRI
// (LogMetricsCollector in pkg/kubelet/metrics/collectors). If they do not arrive in time, the check reads the Node
// instead, where kubelet writes "PLEG is not healthy: pleg was last seen active 3m2s ago" into the message of Ready.
//
// The age of the last success is counted by the time since boot from the run that saw the value first; only that run
// uses the wall clock. So a clock step makes at most one run wrong, and it takes two to raise a finding.
//
// On a node at rest (see docs/cost.md) the agent's own list of containers shows a hanging runtime. Any other stop of
// the relists makes the node NotReady after 3 minutes; then the control plane marks its pods, which ends the rest.
//
// The monitoring mixin of Kubernetes alerts at 10 s for a relist, too (KubeletPlegDurationHigh).

const (
	plegThreshold  = 3 * time.Minute  // kubelet's own
	plegEvented    = 10 * time.Minute // if the runtime sends events
	plegSlowAge    = time.Minute
	plegSlowShare  = 0.01 // of the relists took more than 10 s
	plegSlowLeast  = 3
	metricsTimeout = 8 * time.Second // for the metrics
	plegListLimit  = 2 * time.Second // for the agent's own list of containers; some ms are normal
)

// KubeletPLEG finds a kubelet that can no longer list its containers.
func KubeletPLEG() detect.Check {
	m := &plegState{meter: checkkit.KubeletMeter{Window: 5 * time.Minute, ReportsForbidden: true}}
	return detect.Check{
		ID:      "kubelet-pleg",
		Domain:  "kubernetes",
		Summary: "kubelet does not get the list of containers from the container runtime (PLEG)",
		Advice: "The runtime answers slowly or not at all: see runtime-health, and run `time crictl ps`. Check for " +
			"disk pressure (`nodeagent explain load`), a shim that hangs (`ps -eo pid,stat,wchan,args | grep " +
			"containerd-shim`), or thousands of dead containers. Restarting kubelet alone does not help.",
		Doc: detect.Doc{
			Reads: []string{"https://127.0.0.1:10250/metrics, on a node at rest once in 40 minutes",
				"CRI ListContainers, on a node at rest: an answer after 2 s ends the rest",
				"GET nodes/NAME of the apiserver, only while the metrics do not answer"},
			Why: "Everything that kubelet does to pods starts from this list. Without it no pod starts, no exit is " +
				"noticed, and after three minutes kubelet reports the node NotReady.",
			Faults: []detect.Fault{
				{Reason: "PLEGUnhealthy", Severity: finding.Fatal, When: "no relist has succeeded for 3 minutes (10 " +
					"minutes where the runtime sends events): the limit at which kubelet itself becomes NotReady"},
				{Reason: "PLEGLate", Severity: finding.Warning, When: "no relist has succeeded for a minute: one is " +
					"due each second"},
				{Reason: "PLEGSlow", Severity: finding.Warning, When: "more than 1 % of the relists of 5 minutes, " +
					"and at least 3, took over 10 s"},
			},
			FalseAlarms: "A step of the wall clock makes one run wrong; two in a row are needed. Single slow relists " +
				"of a busy runtime are normal. A kubelet that does not answer is reported by kubelet-health.",
		},
		Condition: checkkit.KubeletProblem(),
		Every:     time.Minute,
		Deadline:  20 * time.Second,
		Policy:    finding.Policy{Raise: finding.Hold{Runs: 2}},
		Run:       m.observe,
	}
}

// plegState is the state between runs.
type plegState struct {
	meter checkkit.KubeletMeter
	mark  float64 // identifies the latest success
	first finding.Timestamp
	age   time.Duration // of mark when it was first seen
}

func (m *plegState) observe(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	m.meter.NoRest = m.meter.NoRest || listsSlowly(ctx, h)
	asking, cancel := context.WithTimeout(ctx, metricsTimeout)
	defer cancel()
	grown, scrape, err := m.meter.Read(asking, h, func(_ string, s kubelet.Sample) string {
		return s.Label("le")
	}, "kubelet_pleg_relist_duration_seconds_bucket")
	if errors.Is(err, context.DeadlineExceeded) && h.Cluster.Node != nil {
		return plegFromNode(ctx, h, err)
	}
	if err != nil {
		return nil, err
	}
	seen, ok := scrape.Metrics.Gauge("kubelet_pleg_last_seen_seconds")
	if !ok {
		return nil, fmt.Errorf("kubelet's metrics: no kubelet_pleg_last_seen_seconds")
	}
	events, _ := scrape.Metrics.Gauge("kubelet_evented_pleg_connection_success_count")
	relists, _ := scrape.Metrics.Gauge("kubelet_pleg_relist_duration_seconds_count")
	if events > 0 {
		m.track(relists, 0, scrape.At) // kubelet sets the other metric to now while events arrive
	} else {
		epoch, _ := scrape.Metrics.Gauge("process_start_time_seconds")
		last := max(seen, epoch) // 0 before the first success
		m.track(seen, time.Duration(float64(scrape.At.Wall.UnixNano())-last*1e9), scrape.At)
	}
	return m.meter.Follow(evaluatePLEG(scrape.At.Since(m.first)+m.age, events > 0, grown)), nil
}

// listsSlowly makes the same call as a relist, which shows a slow runtime also on a node at rest.
func listsSlowly(ctx context.Context, h *host.Host) bool {
	if h.Kubelet.RecentScrape == nil || h.Runtime.Lists == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, plegListLimit)
	defer cancel()
	return h.Runtime.Lists(ctx) != nil
}

// plegFromNode reads kubelet's own report from the Node. Without it the result is unknown, since metrics may be slow
// for other reasons.
func plegFromNode(ctx context.Context, h *host.Host, slow error) ([]finding.Finding, error) {
	node, err := h.Cluster.Node(ctx)
	if err != nil {
		return nil, errors.Join(slow, err)
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionFalse &&
			strings.Contains(c.Message, "PLEG is not healthy") {
			return []finding.Finding{{
				Subject: checkkit.KubeletSubject(), Severity: finding.Fatal, Reason: "PLEGUnhealthy",
				Message: "kubelet reports that it cannot list the containers, and its metrics do not answer: the " +
					"container runtime hangs (" + checkkit.Sanitize(c.Message, checkkit.MaxReported) + ")",
				Facts: map[string]string{"said": checkkit.Sanitize(c.Message, checkkit.MaxReported)},
			}}, nil
		}
	}
	return nil, slow
}

// track records since when the latest success has been the same one. The wall clock is used only for a success from
// before the first run.
func (m *plegState) track(mark float64, age time.Duration, at finding.Timestamp) {
	if m.first.Boot == at.Boot && m.mark == mark {
		return
	}
	between := at.SinceBoot
	if interval := m.meter.LastInterval(); m.first.Boot == at.Boot && interval > 0 {
		between = interval
	}
	m.mark, m.first, m.age = mark, at, min(max(age, 0), between)
}

func evaluatePLEG(age time.Duration, evented bool, grown map[string]float64) []finding.Finding {
	threshold := plegThreshold
	if evented {
		threshold = plegEvented
	}
	all := grown["+Inf"]
	slow := all - grown["10"]
	f := finding.Finding{
		Subject: checkkit.KubeletSubject(), Severity: finding.Warning,
		Facts: map[string]string{"lastSeenSeconds": strconv.Itoa(int(age.Seconds())),
			"relists": checkkit.WholeNumber(all), "slowRelists": checkkit.WholeNumber(slow)},
	}
	switch rounded := age.Round(time.Second); {
	case age > threshold:
		f.Severity, f.Reason = finding.Fatal, "PLEGUnhealthy"
		f.Message = fmt.Sprintf("kubelet has not been able to list the containers for %s (it gives up after %s): the "+
			"container runtime hangs or fails", rounded, threshold)
	case !evented && age > plegSlowAge/2:
		f.Reason, f.BelowRaise = "PLEGLate", age <= plegSlowAge
		f.Message = fmt.Sprintf("kubelet has not been able to list the containers for %s; one list is due each "+
			"second, and it is NotReady after %s", rounded, threshold)
	case slow >= plegSlowLeast && slow > all*plegSlowShare/2:
		f.Reason, f.BelowRaise = "PLEGSlow", slow <= max(all*plegSlowShare, plegSlowLeast-1)
		f.Message = fmt.Sprintf("%.0f of %.0f lists of the containers took more than 10 s: the container runtime is slow",
			slow, all)
	default:
		return nil
	}
	return []finding.Finding{f}
}
