// Package report publishes what the tracker believes. Each reporter is a folder below it.
package report

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Reporter publishes to one kind of sink. Level sinks (conditions, gauges) write the newest state; edge sinks (events)
// take each update.
type Reporter interface {
	// Name identifies the reporter in logs and metrics.
	Name() string
	// Update takes over the state after an observation and what changed by it. It must not block: a slow sink harms
	// only itself. The state must not be modified.
	Update(state finding.State, updates []finding.Update)
	// Run works until ctx ends and leaves nothing behind.
	Run(ctx context.Context) error
}

// ActivityReporter is a Reporter that also reports what became of leftovers.
type ActivityReporter interface {
	Reporter
	// Report takes over transitions, in their order. It must not block, and neither modify nor keep the slice.
	Report(activities []finding.Activity)
}

// NodeReporter is a Reporter that writes to the Node, or to what the Node owns, and compares that with what is there.
type NodeReporter interface {
	Reporter
	// Saw takes over the Node as the apiserver has it. It must not block, and not modify the Node.
	Saw(node *corev1.Node)
	// Seen returns when the Node was seen last and what it showed of this reporter, for people; zero: it was not.
	Seen() (at time.Time, shows string)
}

// While something is wrong, what others have changed is put right again every CompareFaulty, in peace every
// CompareCalm: another writer of the same thing must not be answered with a write for each of its own.
const (
	CompareFaulty = 2 * time.Minute
	CompareCalm   = 40 * time.Minute
	// Echo is how long after a write the Node may still be shown as it was before.
	Echo = 5 * time.Second
)
