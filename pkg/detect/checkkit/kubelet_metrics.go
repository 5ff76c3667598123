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

// The checks that read kubelet's metrics share one scrape a minute. On an idle node they share the last scrape
// (host.Kubelet.RecentScrape), unless one of them has a finding.

// KubeletProblem is the condition of faults that keep kubelet from serving pods.
func KubeletProblem() finding.Condition {
	return finding.Condition{
		Type: "KubeletUnhealthy", ReadyType: "KubeletReady",
		HealthyReason: "KubeletIsHealthy", HealthyMessage: "kubelet on the node is functioning properly",
	}
}

// KubeletSubject is the subject of findings about kubelet itself.
func KubeletSubject() finding.Subject { return finding.Subject{Kind: "kubelet", Name: "kubelet"} }

const metricsRefused = "the agent has no right to read kubelet's metrics: it needs get on nodes/metrics"

// scrapeKubelet reads kubelet's metrics. If kubelet does not answer, that is an error here, and a finding of
// kubelet-health.
func scrapeKubelet(ctx context.Context, h *host.Host, anew bool) (*kubelet.Scrape, error) {
	ask := h.Kubelet.Scrape
	if ask == nil {
		return nil, finding.NotApplicable("no kubelet is configured on this host")
	}
	if !anew && h.Kubelet.RecentScrape != nil {
		ask = h.Kubelet.RecentScrape
	}
	scrape, err := ask(ctx)
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

// KubeletMeter measures how much counters of kubelet rise within a window of time.
type KubeletMeter struct {
	Window           time.Duration
	ReportsForbidden bool // report missing permission to read them: one check is enough for that
	// NoRest means that the next run needs metrics of its own minute, although no pod changes.
	NoRest bool
	// Strict means that a rise over much more than the window is ignored. Gap is true after such a late scrape.
	Strict, Gap bool

	window Window[float64] // of one kubelet process
	at     finding.Timestamp
	epoch  float64 // when kubelet started, by its own clock
}

// Read adds one scrape. The returned map is nil if no rise is known: after the first scrape, or the first one of a new
// kubelet. Pick returns the key under which a sample is counted, empty for none.
func (m *KubeletMeter) Read(ctx context.Context, h *host.Host, pick func(name string, s kubelet.Sample) string,
	names ...string) (map[string]float64, *kubelet.Scrape, error) {
	scrape, err := scrapeKubelet(ctx, h, m.NoRest)
	if err != nil {
		// If they were readable before, a permission was removed: that is an error of each check.
		if errors.Is(err, hosterr.ErrForbidden) && !m.ReportsForbidden && len(m.window.samples) == 0 {
			err = finding.NotApplicable("%s; kubelet-pleg reports it", metricsRefused)
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
	m.add(scrape.At, epoch, values)
	return m.rises(), scrape, nil
}

func (m *KubeletMeter) add(at finding.Timestamp, epoch float64, values map[string]float64) {
	if len(m.window.samples) > 0 && m.at == at {
		return // the same scrape again
	}
	same := m.at.Boot == at.Boot && m.epoch == epoch
	m.Gap = m.Strict && same && at.Since(m.at) > m.Window
	if !same || m.Gap {
		m.window.Reset()
	}
	m.window.Span, m.window.OneProcess, m.at, m.epoch = m.Window, true, at, epoch
	m.window.Add(at.SinceBoot, values)
}

func (m *KubeletMeter) rises() map[string]float64 {
	if len(m.window.samples) < 2 {
		return nil
	}
	rises := make(map[string]float64)
	for key := range m.window.Newest() {
		rises[key], _, _ = m.window.Rise(key)
	}
	return rises
}

// Follow makes the next run scrape kubelet again if there are findings, until they are gone.
func (m *KubeletMeter) Follow(found []finding.Finding) []finding.Finding {
	m.NoRest = len(found) > 0
	return found
}

// Oldest returns the counters at the start of the window.
func (m *KubeletMeter) Oldest() map[string]float64 { return m.window.Oldest() }

// LastInterval returns the time between the two newest scrapes, 0 if there are fewer than two.
func (m *KubeletMeter) LastInterval() time.Duration { return m.window.LastInterval() }

// Span returns the time that the rises cover, rounded for a message.
func (m *KubeletMeter) Span() time.Duration {
	if elapsed := m.window.Elapsed(); elapsed < 2*time.Minute {
		return elapsed.Round(time.Second)
	}
	return m.window.Elapsed().Round(time.Minute)
}
