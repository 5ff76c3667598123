// Package remediate releases what deleted pods left behind. It acts on nothing but objects that an inspection called
// leftovers, one pod at a time, in the order of the catalogue; it removes the smallest blocker first and then gives the
// owner (kubelet, the runtime) time to finish its own work. It is the only package that is given a Mutator.
//
// Every step goes: intent in the journal, guards, another look at the object's identity (by package mutate, right
// before the system call), the step, verification, end in the journal. A crash between any two of them is harmless:
// the next release begins with what is there, never with what was planned.
package remediate

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// Action is how leftovers of one kind are released.
type Action struct {
	Kind    inspect.Kind
	Order   int    // kinds with a lower one are released first
	Summary string // one line for the documentation

	// Plan says what would be done, or why not. It is pure.
	Plan func(o inspect.Assessment, s Settings) (does, refuse string)
	// Less puts the objects of one pod in order; nil keeps that of the report.
	Less func(a, b inspect.Assessment) int
	// Needs says what has to be gone before this object may be released, given what is left of its pod; empty: nothing.
	Needs func(o inspect.Assessment, rest []inspect.Assessment, s Settings) string
	// Preview says what Do would refuse, with reading alone; nil where Plan knows all.
	Preview func(ctx context.Context, t Tools, o inspect.Assessment) (refuse string)
	// Prepare is done once before the first object of a pod; nil where there is nothing to do for all together.
	Prepare func(ctx context.Context, t Tools, all []inspect.Assessment) error
	// Do releases the object. It may be called again for one that is half released or gone.
	Do func(ctx context.Context, t Tools, o inspect.Assessment) error
	// Verify verifies. An error means that nobody can say.
	Verify func(ctx context.Context, t Tools, o inspect.Assessment) (bool, error)
}

// Tools is what an action works with.
type Tools struct {
	Mutator    *mutate.Mutator
	Host       *host.Host
	Settings   Settings
	Log        *slog.Logger
	Drivers    *driverWatch             // what is known of CSI drivers
	FaultPoint func(point string) error // fault point between two changes of one step

	timeouts timeouts
}

// timeouts are how long an answer is waited for of those who may never give one. The zero value stands for the limits
// of use.
type timeouts struct {
	server time.Duration // of a mount
	socket time.Duration // of a plugin
}

func (t timeouts) forServer() time.Duration { return cmp.Or(t.server, 5*time.Second) }
func (t timeouts) forSocket() time.Duration { return cmp.Or(t.socket, 2*time.Second) }
