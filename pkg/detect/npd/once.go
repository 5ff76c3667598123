package npd

import (
	"context"
	"slices"
	"sync"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	hostkmsg "github.com/nodeagent/nodeagent/internal/host/kmsg"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Once makes the checks fit for one look without a running agent: monitors of the kernel's log read what the kernel has
// kept, and those that only somebody who follows a log can answer for say so.
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

// readKernel tells the monitors what the kernel has kept.
func (m *Monitors) readKernel(ctx context.Context, h *host.Host) {
	err := error(hosterr.ErrNotConfigured)
	if h.KernelLog != nil {
		err = h.KernelLog(ctx, func(r hostkmsg.KernelRecord) {
			for _, e := range m.kernel {
				e.observeRecord(r)
			}
		})
	}
	for _, e := range m.kernel {
		e.monitor.setReadable(err)
	}
}
