package detect

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// The checks that read kubelet's metrics share one scrape a minute (host.Kubelet.Scrape). Counters are judged by how they
// moved within a window, so that a first look says nothing of them.

// kubeletProblem is the condition of what makes kubelet unable to serve pods.
func kubeletProblem() Condition {
	return Condition{
		Type: "KubeletUnhealthy", ReadyType: "KubeletReady",
		HealthyReason: "KubeletIsHealthy", HealthyMessage: "kubelet on the node is functioning properly",
	}
}

// kubeletSubject is the subject of findings about kubelet itself.
func kubeletSubject() finding.Subject { return finding.Subject{Kind: "kubelet", Name: "kubelet"} }

const metricsRefused = "the agent has no right to read kubelet's metrics: it needs get on nodes/metrics"

// scrapeKubelet asks for kubelet's metrics. A kubelet that does not answer is kubelet-health's finding: nothing is learnt
// here.
func scrapeKubelet(ctx context.Context, h *host.Host) (*host.Scrape, error) {
	if h.Kubelet.Scrape == nil {
		return nil, finding.NotApplicable("no kubelet is configured on this host")
	}
	scrape, err := h.Kubelet.Scrape(ctx)
	switch {
	case errors.Is(err, host.ErrNotConfigured):
		return nil, finding.NotApplicable("kubelet serves no API on this node (enableServer: false)")
	case errors.Is(err, host.ErrForbidden):
		return nil, fmt.Errorf("%s: %w", metricsRefused, err)
	case err != nil:
		return nil, fmt.Errorf("kubelet's metrics: %w", err)
	}
	return scrape, nil
}

// kubeletMeter counts how counters of kubelet moved within a window of time.
type kubeletMeter struct {
	window time.Duration
	tells  bool                // that the agent has no right to read them: one check is enough for that
	points []kubeletMeterPoint // of one life of kubelet, the oldest first
}

type kubeletMeterPoint struct {
	at     finding.Stamp
	epoch  float64 // when kubelet started, by its own word
	values map[string]float64
}

// maxPoints bounds the memory of one kubeletMeter.
const maxPoints = 64

// read takes one scrape into account. A nil map means that there is nothing to say yet: this is the first scrape, or the
// first one of a new kubelet. Pick returns under which key a sample is counted, empty for none.
func (m *kubeletMeter) read(ctx context.Context, h *host.Host, pick func(name string, s host.Sample) string, names ...string) (map[string]float64, *host.Scrape, error) {
	scrape, err := scrapeKubelet(ctx, h)
	if err != nil {
		// Whoever could read them before has lost something.
		if errors.Is(err, host.ErrForbidden) && !m.tells && len(m.points) == 0 {
			err = finding.NotApplicable("%s; kubelet-pleg tells so", metricsRefused)
		}
		return nil, nil, err
	}
	values := make(map[string]float64)
	for _, name := range names {
		for _, sample := range scrape.Metrics[name] {
			if key := pick(name, sample); key != "" {
				values[key] += sample.Value
			}
		}
	}
	epoch, _ := scrape.Metrics.Gauge("process_start_time_seconds")
	m.add(kubeletMeterPoint{at: scrape.At, epoch: epoch, values: values})
	return m.delta(), scrape, nil
}

// add keeps a point, and what is needed of the ones before.
func (m *kubeletMeter) add(p kubeletMeterPoint) {
	if n := len(m.points); n > 0 {
		last := m.points[n-1]
		if last.at == p.at {
			return // the same scrape once more
		}
		if last.at.Boot != p.at.Boot || last.epoch != p.epoch || backwards(last.values, p.values) {
			m.points = nil
		}
	}
	m.points = append(m.points, p)
	// The oldest point kept is the last one that is at least a window old.
	for len(m.points) > 2 && (len(m.points) > maxPoints || p.at.Since(m.points[1].at) >= m.window) {
		m.points = m.points[1:]
	}
}

// backwards reports whether a counter became smaller: another kubelet counts. A series that is gone proves nothing, since
// kubelet drops those of pods that are gone.
func backwards(before, now map[string]float64) bool {
	for key, old := range before {
		if value, still := now[key]; still && value < old {
			return true
		}
	}
	return false
}

// delta is how much each counter grew between the first and the last point.
func (m *kubeletMeter) delta() map[string]float64 {
	if len(m.points) < 2 {
		return nil
	}
	first, last := m.points[0], m.points[len(m.points)-1]
	grown := make(map[string]float64)
	for key, value := range last.values {
		grown[key] = value - first.values[key]
	}
	return grown
}

// over is the time between the first and the last point.
func (m *kubeletMeter) over() time.Duration {
	if len(m.points) < 2 {
		return 0
	}
	return m.points[len(m.points)-1].at.Since(m.points[0].at)
}

// span is the time between the first and the last point for people.
func (m *kubeletMeter) span() time.Duration {
	if over := m.over(); over < 2*time.Minute {
		return over.Round(time.Second)
	}
	return m.over().Round(time.Minute)
}

// wholeNumber is a counted number for people.
func wholeNumber(f float64) string { return fmt.Sprintf("%.0f", f) }
