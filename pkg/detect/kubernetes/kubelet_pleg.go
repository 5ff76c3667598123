package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"math"
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
// The pod lifecycle event generator lists all containers of the runtime each second (each 300 s where the runtime
// sends events) and so drives everything that kubelet does. When that has not succeeded for 3 minutes (10 with
// events: then only the count of relists tells), kubelet itself says "PLEG is not healthy", becomes NotReady and does
// not touch pods any more (genericPlegRelistThreshold in pkg/kubelet/kubelet.go, Healthy in
// pkg/kubelet/pleg/generic.go).
//
// https://kubernetes.io/docs/reference/instrumentation/metrics/.
//
// Kubelet's /metrics hang when the runtime does: one of its collectors lists the containers' logs over CRI
// (LogMetricsCollector in pkg/kubelet/metrics/collectors). When they do not come in time, the Node is asked for
// instead, where kubelet writes "PLEG is not healthy: pleg was last seen active 3m2s ago" into the message of Ready.
//
// How long nothing was seen is counted by the time since boot from the look that saw the value first; the wall clock
// is only asked in that look. A clock that jumps is so at worst one look's error, and two are needed to raise.
//
// Known false alarms: a busy runtime makes single relists slow: more than 1 % of five minutes' relists, three at least,
// must have taken over 10 s, which is where the monitoring mixin of Kubernetes alerts (KubeletPlegDurationHigh).

const (
	plegID         = "kubelet-pleg"
	plegThreshold  = 3 * time.Minute  // kubelet's own
	plegEvented    = 10 * time.Minute // where the runtime sends events
	plegSlowAge    = time.Minute
	plegWindow     = 5 * time.Minute
	plegSlowShare  = 0.01 // of the relists took more than 10 s
	plegSlowLeast  = 3
	metricsTimeout = 8 * time.Second // for the metrics
)

// KubeletPLEG finds a kubelet that cannot see its containers any more.
func KubeletPLEG() detect.Check {
	m := &plegState{meter: checkkit.KubeletMeter{Window: plegWindow, Tells: true}}
	return detect.Check{
		ID:      plegID,
		Domain:  "kubernetes",
		Summary: "kubelet does not hear from the container runtime which containers there are (PLEG)",
		Advice: "The runtime answers slowly or not at all: see runtime-health, and `crictl ps` by hand with a " +
			"stopwatch. Look for disk pressure (`nodeagent explain load`), a shim that hangs (`ps -eo " +
			"pid,stat,wchan,args | grep containerd-shim`), or thousands of dead containers. Restarting kubelet alone " +
			"does not help.",
		Doc: detect.Doc{
			Reads: []string{"https://127.0.0.1:10250/metrics",
				"GET nodes/NAME of the apiserver, while these do not answer"},
			Why: "All that kubelet does to pods begins with this list. Without it no pod starts, no death is " +
				"noticed, and after three minutes kubelet declares the node NotReady.",
			Faults: []detect.Fault{
				{Reason: "PLEGUnhealthy", Severity: finding.Fatal, When: "no relist has succeeded for 3 minutes (10 " +
					"minutes where the runtime sends events): the limit at which kubelet itself becomes NotReady"},
				{Reason: "PLEGLate", Severity: finding.Warning, When: "no relist has succeeded for a minute: one is " +
					"due each second"},
				{Reason: "PLEGSlow", Severity: finding.Warning, When: "more than 1 % of the relists of 5 minutes, " +
					"and at least 3, took over 10 s"},
			},
			FalseAlarms: "A jump of the wall clock makes one look wrong; two in a row are needed. A kubelet that " +
				"does not answer is found by kubelet-health.",
		},
		Condition: checkkit.KubeletProblem(),
		Every:     time.Minute,
		Deadline:  20 * time.Second,
		Policy:    finding.Policy{Raise: finding.Hold{Looks: 2}},
		Run:       m.observe,
	}
}

// plegState is what one look leaves for the next.
type plegState struct {
	meter checkkit.KubeletMeter
	mark  float64 // what stands for the latest success
	first finding.Timestamp
	age   time.Duration // of mark when it was first seen
}

func (m *plegState) observe(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
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
		m.track(relists, 0, scrape.At) // kubelet sets the other one to now while events come
	} else {
		epoch, _ := scrape.Metrics.Gauge("process_start_time_seconds")
		last := max(seen, epoch) // 0 before the first success
		m.track(seen, time.Duration(float64(scrape.At.Wall.UnixNano())-last*1e9), scrape.At)
	}
	return evaluatePLEG(scrape.At.Since(m.first)+m.age, events > 0, grown), nil
}

// plegFromNode takes kubelet's own word from the Node. It is the only word that counts: without it nothing is learnt,
// since metrics may be slow for other reasons.
func plegFromNode(ctx context.Context, h *host.Host, slow error) ([]finding.Finding, error) {
	node, err := h.Cluster.Node(ctx)
	if err != nil {
		return nil, errors.Join(slow, err)
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionFalse &&
			strings.Contains(c.Message, "PLEG is not healthy") {
			return []finding.Finding{{
				Check: plegID, Subject: checkkit.KubeletSubject(), Severity: finding.Fatal, Reason: "PLEGUnhealthy",
				Message: "kubelet says that it cannot list the containers, and its metrics do not answer: the " +
					"container runtime hangs (" + checkkit.Sanitize(c.Message, checkkit.MaxReported) + ")",
				Facts: map[string]string{"said": checkkit.Sanitize(c.Message, checkkit.MaxReported)},
			}}, nil
		}
	}
	return nil, slow
}

// track notes since when the latest success is the same one. The wall clock's answer is only taken for a success that
// was there before anybody looked.
func (m *plegState) track(mark float64, age time.Duration, at finding.Timestamp) {
	if m.first.Boot == at.Boot && m.mark == mark {
		return
	}
	between := at.SinceBoot
	if m.first.Boot == at.Boot && len(m.meter.Points) > 1 {
		between = m.meter.Points[len(m.meter.Points)-1].At.Since(m.meter.Points[len(m.meter.Points)-2].At)
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
		Check: plegID, Subject: checkkit.KubeletSubject(), Severity: finding.Warning,
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
		f.Reason, f.BelowRaise = "PLEGSlow", slow <= math.Max(all*plegSlowShare, plegSlowLeast-1)
		f.Message = fmt.Sprintf("%s of %s lists of the containers took more than 10 s: the container runtime is slow",
			checkkit.WholeNumber(slow), checkkit.WholeNumber(all))
	default:
		return nil
	}
	return []finding.Finding{f}
}
