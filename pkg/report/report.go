// Package report publishes the believed state of the tracker. Each reporter is a folder below it.
package report

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Reporter publishes to one kind of sink. Level sinks (conditions, gauges) write the newest state; edge sinks (events)
// report each update.
type Reporter interface {
	// Name identifies the reporter in logs and metrics.
	Name() string
	// Update takes the state after an observation, and its changes. It must not block: a slow sink must not affect the
	// others. It must not modify the state.
	Update(state finding.State, updates []finding.Update)
	// Run works until ctx ends and cleans up after itself.
	Run(ctx context.Context) error
}

// ActivityReporter is a Reporter that also reports the fate of leftovers.
type ActivityReporter interface {
	Reporter
	// Report takes transitions, in their order. It must not block, and must neither modify nor keep the slice.
	Report(activities []finding.Activity)
}

// NodeReporter is a Reporter that writes to the Node, or to an object that the Node owns, and compares its own state
// with the one on the apiserver.
type NodeReporter interface {
	Reporter
	// Saw takes the Node as the apiserver has it. It must not block or modify the Node.
	Saw(node *corev1.Node)
	// Seen returns when the Node was last seen and what it showed of this reporter, for people; zero: never.
	Seen() (at time.Time, shows string)
}

// The reporter corrects changes by others every CompareFaulty while there is a fault, else every CompareCalm: it must
// not answer each write of a competing writer with one of its own.
const (
	CompareFaulty = 2 * time.Minute
	CompareCalm   = 40 * time.Minute
	// Echo is how long after a write the watch may still show the Node as it was before.
	Echo = 5 * time.Second
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
