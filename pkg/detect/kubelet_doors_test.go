package detect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/nodeagent/nodeagent/internal/host"
)

// kubeletMetricsDoor answers with what kubelet's /metrics and /metrics/probes would say.
func kubeletMetricsDoor(t *testing.T, h *host.Host, file txtar.File) {
	t.Helper()
	metrics, err := host.ParseMetrics(bytes.NewReader(file.Data), host.KubeletMetrics())
	h.Kubelet.Scrape = func(context.Context) (*host.Scrape, error) {
		if err != nil {
			return nil, fmt.Errorf("get https://127.0.0.1:10250/metrics: parse: %w", err)
		}
		return &host.Scrape{At: h.Clock(), Metrics: metrics}, nil
	}
}

// kubeletMetricsErrorDoor does not answer, with that error; "forbidden" and "not configured" are known.
func kubeletMetricsErrorDoor(_ *testing.T, h *host.Host, file txtar.File) {
	text := strings.TrimSpace(string(file.Data))
	err := map[string]error{"forbidden": host.ErrForbidden, "not configured": host.ErrNotConfigured}[text]
	if err == nil {
		err = errors.New(text)
	}
	h.Kubelet.Scrape = func(context.Context) (*host.Scrape, error) { return nil, err }
}

// kubeletProcessDoor finds the kubelet among the processes of the machine.
func kubeletProcessDoor(_ *testing.T, h *host.Host, _ txtar.File) {
	h.Kubelet.Process = host.KubeletFinder(h.Files, h.Paths)
}
