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

// scraper caches the latest metrics of kubelet. Concurrent callers wait for a running request, but not beyond their
// ctx.
type scraper struct {
	ask   func(ctx context.Context) (*kubelet.Scrape, error)
	token chan struct{} // of size 1: guards the fields below and the right to ask
	last  *kubelet.Scrape
	err   error
	until time.Time
}

func newScraper(k *kubeletClient) *scraper {
	return &scraper{ask: k.scrape, token: make(chan struct{}, 1)}
}

func (s *scraper) get(ctx context.Context) (*kubelet.Scrape, error) {
	select {
	case s.token <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-s.token }()
	if time.Now().Before(s.until) {
		return s.last, s.err
	}
	s.last, s.err = s.ask(ctx)
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		s.until = time.Time{} // only this caller's ctx has ended
	case s.err == nil || errors.Is(s.err, context.DeadlineExceeded):
		s.until = time.Now().Add(scrapeFor)
	default:
		s.until = time.Now().Add(scrapeErrorFor)
	}
	return s.last, s.err
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
