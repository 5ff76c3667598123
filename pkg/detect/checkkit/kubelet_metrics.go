package checkkit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// The checks that read kubelet's metrics share one scrape a minute (host.Kubelet.Scrape). Counters are judged by how
// they moved within a window, so that a first look says nothing of them.

// KubeletProblem is the condition of what makes kubelet unable to serve pods.
func KubeletProblem() finding.Condition {
	return finding.Condition{
		Type: "KubeletUnhealthy", ReadyType: "KubeletReady",
		HealthyReason: "KubeletIsHealthy", HealthyMessage: "kubelet on the node is functioning properly",
	}
}

// KubeletSubject is the subject of findings about kubelet itself.
func KubeletSubject() finding.Subject { return finding.Subject{Kind: "kubelet", Name: "kubelet"} }

const metricsRefused = "the agent has no right to read kubelet's metrics: it needs get on nodes/metrics"

// scrapeKubelet asks for kubelet's metrics. A kubelet that does not answer is kubelet-health's finding: nothing is
// learnt here.
func scrapeKubelet(ctx context.Context, h *host.Host) (*kubelet.Scrape, error) {
	if h.Kubelet.Scrape == nil {
		return nil, finding.NotApplicable("no kubelet is configured on this host")
	}
	scrape, err := h.Kubelet.Scrape(ctx)
	switch {
	case errors.Is(err, hosterr.ErrNotConfigured):
		return nil, finding.NotApplicable("kubelet serves no API on this node (enableServer: false)")
	case errors.Is(err, hosterr.ErrForbidden):
		return nil, fmt.Errorf("%s: %w", metricsRefused, err)
	case err != nil:
		return nil, fmt.Errorf("kubelet's metrics: %w", err)
	}
	return scrape, nil
}

// KubeletMeter counts how counters of kubelet moved within a window of time.
type KubeletMeter struct {
	Window time.Duration
	Tells  bool                // that the agent has no right to read them: one check is enough for that
	Points []kubeletMeterPoint // of one life of kubelet, the oldest first
}

type kubeletMeterPoint struct {
	At     finding.Timestamp
	epoch  float64 // when kubelet started, by its own word
	Values map[string]float64
}

// maxPoints bounds the memory of one kubeletMeter.
const maxPoints = 64

// Read takes one scrape into account. A nil map means that there is nothing to say yet: this is the first scrape, or
// the first one of a new kubelet. Pick returns under which key a sample is counted, empty for none.
func (m *KubeletMeter) Read(ctx context.Context, h *host.Host, pick func(name string, s kubelet.Sample) string,
	names ...string) (map[string]float64, *kubelet.Scrape, error) {
	scrape, err := scrapeKubelet(ctx, h)
	if err != nil {
		// Whoever could read them before has lost something.
		if errors.Is(err, hosterr.ErrForbidden) && !m.Tells && len(m.Points) == 0 {
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
	m.add(kubeletMeterPoint{At: scrape.At, epoch: epoch, Values: values})
	return m.delta(), scrape, nil
}

// add keeps a point, and what is needed of the ones before.
func (m *KubeletMeter) add(p kubeletMeterPoint) {
	if n := len(m.Points); n > 0 {
		last := m.Points[n-1]
		if last.At == p.At {
			return // the same scrape once more
		}
		if last.At.Boot != p.At.Boot || last.epoch != p.epoch || backwards(last.Values, p.Values) {
			m.Points = nil
		}
	}
	m.Points = append(m.Points, p)
	// The oldest point kept is the last one that is at least a window old.
	for len(m.Points) > 2 && (len(m.Points) > maxPoints || p.At.Since(m.Points[1].At) >= m.Window) {
		m.Points = m.Points[1:]
	}
}

// backwards reports whether a counter became smaller: another kubelet counts. A series that is gone proves nothing,
// since kubelet drops those of pods that are gone.
func backwards(before, now map[string]float64) bool {
	for key, old := range before {
		if value, still := now[key]; still && value < old {
			return true
		}
	}
	return false
}

// delta is how much each counter grew between the first and the last point.
func (m *KubeletMeter) delta() map[string]float64 {
	if len(m.Points) < 2 {
		return nil
	}
	first, last := m.Points[0], m.Points[len(m.Points)-1]
	grown := make(map[string]float64)
	for key, value := range last.Values {
		grown[key] = value - first.Values[key]
	}
	return grown
}

// over is the time between the first and the last point.
func (m *KubeletMeter) over() time.Duration {
	if len(m.Points) < 2 {
		return 0
	}
	return m.Points[len(m.Points)-1].At.Since(m.Points[0].At)
}

// Span is the time between the first and the last point for people.
func (m *KubeletMeter) Span() time.Duration {
	if over := m.over(); over < 2*time.Minute {
		return over.Round(time.Second)
	}
	return m.over().Round(time.Minute)
}
