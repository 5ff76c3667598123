package report

import (
	"context"
	"time"
)

// Steps calls step at once, then after each change and at the time that step returned (zero: only after a change),
// until ctx ends.
func Steps(ctx context.Context, changed <-chan struct{}, step func(context.Context) time.Time) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
		if next := step(ctx); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// Wake signals a change to the receiver of a channel of size 1; one signal stands for all changes until it is received.
func Wake(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default: // it is awake already
	}
}
