package checkkit

import (
	"context"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
)

// Of a filesystem that hung and is gone nothing is kept once the kernel has let its probe go.
func TestHungProbesAreForgotten(t *testing.T) {
	h, ended := hosttest.Host(t), make(chan struct{})
	h.Prober.Batch = func(context.Context, time.Duration, []host.ProbeRequest) []host.ProbeResult {
		return []host.ProbeResult{{Err: host.ErrHung, Ended: ended}}
	}
	hung := HungProbes{}
	hung.All(t.Context(), h, time.Second, []string{"8:1 27"}, []host.ProbeRequest{{Path: "/volume"}})
	if len(hung) != 1 {
		t.Fatalf("%d probes hang, want 1", len(hung))
	}
	close(ended)
	hung.All(t.Context(), h, time.Second, nil, nil)
	if len(hung) != 0 {
		t.Errorf("%d probes that have ended are remembered", len(hung))
	}
}
