package npd

import (
	"context"
	"slices"
	"sync"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Once prepares the checks for one run without a daemon: monitors of the kernel's log read the existing records, and
// monitors that need a daemon to follow a log do not apply.
func (m *Monitors) Once() {
	var ids []string
	for _, l := range m.logs {
		if l.file.Log.Plugin == kmsgPlugin {
			ids = append(ids, l.checkIDs()...)
			continue
		}
		l.setReadable(finding.NotApplicable("only the running agent follows %s: see nodeagent status", l.source()))
	}
	var once sync.Once
	for i, c := range m.checks {
		if !slices.Contains(ids, c.ID) {
			continue
		}
		m.checks[i].Run = func(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
			once.Do(func() { m.readKernel(ctx, h) })
			return c.Run(ctx, h)
		}
	}
}

// readKernel passes the existing records to the monitors.
func (m *Monitors) readKernel(ctx context.Context, h *host.Host) {
	err := error(hosterr.ErrNotConfigured)
	if h.KernelLog != nil {
		err = h.KernelLog(ctx, m.observeKernel)
	}
	m.setKernelReadable(err)
}
