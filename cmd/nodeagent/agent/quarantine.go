package agent

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
	"github.com/nodeagent/nodeagent/pkg/report/metrics"
)

// quarantineEvery is how often the quarantine is counted while nothing is released.
const quarantineEvery = 10 * time.Minute

// quarantine is the last count of quarantined objects.
type quarantine struct {
	at   finding.Timestamp // of the last attempt; only for Run
	last atomic.Pointer[release.QuarantineState]
}

// count counts the quarantined objects, if their number may have changed.
func (q *quarantine) count(ctx context.Context, l *leftovers, changed bool) {
	now := l.host.Clock()
	if !changed && !q.at.IsZero() && now.Since(q.at) < quarantineEvery {
		return
	}
	q.at = now
	state, err := l.runner.Quarantine(ctx)
	if err != nil {
		l.log.Warn("count quarantine failed", "err", err)
		return
	}
	l.meter.Quarantined(metrics.Quarantine{
		Bytes: state.Bytes, MaxBytes: state.MaxBytes, Entries: state.Entries, Foreign: state.Foreign, Due: state.Due,
		Oldest: state.Oldest,
	})
	q.last.Store(&state)
}
