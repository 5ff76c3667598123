package agent

import (
	"context"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
	"github.com/nodeagent/nodeagent/pkg/report/metrics"
)

// quarantineEvery is how often the quarantine is counted while nothing is released.
const quarantineEvery = 10 * time.Minute

// quarantine is the last count of quarantined objects.
type quarantine struct {
	mu    sync.Mutex // guards the fields below
	at    finding.Timestamp
	state *release.QuarantineState
}

// count counts the quarantined objects, if their number may have changed.
func (q *quarantine) count(ctx context.Context, l *leftovers, changed bool) {
	now := l.host.Clock()
	q.mu.Lock()
	due := changed || q.at.IsZero() || now.Since(q.at) >= quarantineEvery
	if due {
		q.at = now
	}
	q.mu.Unlock()
	if !due {
		return
	}
	state, err := l.runner.Quarantine(ctx)
	if err != nil {
		l.log.Warn("count quarantine failed", "err", err)
		return
	}
	l.meter.Quarantined(metrics.Quarantine{
		Bytes: state.Bytes, MaxBytes: state.MaxBytes, Entries: state.Entries, Foreign: state.Foreign, Due: state.Due,
		Oldest: state.Oldest,
	})
	q.mu.Lock()
	q.state = &state
	q.mu.Unlock()
}

func (q *quarantine) last() *release.QuarantineState {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.state
}
