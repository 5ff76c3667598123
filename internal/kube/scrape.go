package kube

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
)

// How long one answer of kubelet's metrics serves all who ask: a little less than the minute at which checks look, so that
// they share one scrape a minute. Of what went wrong there may be news sooner.
const (
	scrapeFor      = 50 * time.Second
	scrapeErrorFor = 10 * time.Second
)

// scraper keeps the latest metrics of kubelet. Callers that come while one of them asks wait for it, but not beyond their
// ctx.
type scraper struct {
	ask   func(ctx context.Context) (*host.Scrape, error)
	token chan struct{} // of size 1: holds what follows and the right to ask
	last  *host.Scrape
	err   error
	until time.Time
}

func newScraper(k *kubelet) *scraper {
	return &scraper{ask: k.scrape, token: make(chan struct{}, 1)}
}

func (s *scraper) get(ctx context.Context) (*host.Scrape, error) {
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
	case s.err == nil:
		s.until = time.Now().Add(scrapeFor)
	case ctx.Err() == nil:
		s.until = time.Now().Add(scrapeErrorFor)
	default:
		s.until = time.Time{} // the error is this caller's own
	}
	return s.last, s.err
}

// scrape reads /metrics and, since it has the results of probes, /metrics/probes.
func (k *kubelet) scrape(ctx context.Context) (*host.Scrape, error) {
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
	return &host.Scrape{At: at, Metrics: metrics, ProbesErr: err}, nil
}

func (k *kubelet) metrics(ctx context.Context, path string) (metrics host.Metrics, err error) {
	err = k.stream(ctx, path, func(r io.Reader) error {
		if metrics, err = host.ParseMetrics(r, host.KubeletMetrics()); err != nil {
			return fmt.Errorf("parse: %w", err)
		}
		return nil
	})
	return metrics, err
}
