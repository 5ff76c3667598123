package checkkit

import (
	"context"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/internal/host/probe"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// A probe of a removed filesystem that hung is forgotten once the kernel has released it.
func TestHungProbesAreForgotten(t *testing.T) {
	h, ended := hosttest.Host(t), make(chan struct{})
	h.Prober.Batch = func(context.Context, time.Duration, []probe.ProbeRequest) []probe.ProbeResult {
		return []probe.ProbeResult{{Err: probe.ErrHung, Ended: ended}}
	}
	hung := HungProbes{}
	hung.All(t.Context(), h, time.Second, []string{"8:1 27"}, []probe.ProbeRequest{{Path: "/volume"}})
	if len(hung) != 1 {
		t.Fatalf("%d probes hang, want 1", len(hung))
	}
	close(ended)
	hung.All(t.Context(), h, time.Second, nil, nil)
	if len(hung) != 0 {
		t.Errorf("%d probes that have ended are remembered", len(hung))
	}
}
