package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
)

// How long one answer of kubelet's metrics serves all callers: a little less than the minute at which checks run, so
// that they share one scrape a minute. An error is retried sooner, unless kubelet did not answer in time: kubelet asks
// the runtime for the sizes of logs with each scrape (LogMetricsCollector), continues after the client has gone, and
// must not pile up such requests when the runtime hangs.
const (
	scrapeFor      = 50 * time.Second
	scrapeErrorFor = 10 * time.Second
)

func newScraper(k *kubeletClient) *cached[*kubelet.Scrape] {
	c := newCached(k.scrape)
	c.keep = keepScrape
	return c
}

func keepScrape(ctx context.Context, err error) time.Duration {
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return 0 // only this caller's ctx has ended
	case err == nil || errors.Is(err, context.DeadlineExceeded):
		return scrapeFor
	}
	return scrapeErrorFor
}

// scrape reads /metrics and, for the results of probes, /metrics/probes.
func (k *kubeletClient) scrape(ctx context.Context) (*kubelet.Scrape, error) {
	at := host.Now()
	metrics, err := k.metrics(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	probes, err := k.metrics(ctx, "/metrics/probes")
	const probeTotal = "prober_probe_total"
	if err == nil && len(probes[probeTotal]) > 0 {
		metrics[probeTotal] = probes[probeTotal]
	}
	return &kubelet.Scrape{At: at, Metrics: metrics, ProbesErr: err}, nil
}

func (k *kubeletClient) metrics(ctx context.Context, path string) (metrics kubelet.Metrics, err error) {
	err = k.stream(ctx, path, func(r io.Reader) error {
		if metrics, err = kubelet.ParseMetrics(r, kubelet.KubeletMetrics()); err != nil {
			return fmt.Errorf("parse: %w", err)
		}
		return nil
	})
	return metrics, err
}

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
