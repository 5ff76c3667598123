// Package report publishes what the tracker believes. Each reporter is a folder below it.
package report

import (
	"context"

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
