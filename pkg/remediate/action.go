// Package remediate releases what deleted pods left behind. It acts only on objects that an inspection called
// leftovers, one pod at a time, in the order of Actions. It removes the smallest blocker first and then gives the owner
// (kubelet, the runtime) time to finish its own work. It is the only package that is given a Mutator.
//
// Every step is: intent in the journal, guards, another check of the object's identity (by package mutate, right before
// the system call), the change, verification, end in the journal. A crash between any two of them is harmless: the next
// release starts from the state of the node, never from an old plan.
package remediate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// Action is how leftovers of one kind are released.
type Action struct {
	Kind    inspect.Kind
	Order   int    // kinds with a lower value are released first
	Summary string // one line for the documentation

	// Plan returns what would be done, or why not. It is pure.
	Plan func(o inspect.Assessment, s Settings) (does, refuse string)
	// Less orders the objects of one pod; nil keeps the order of the report.
	Less func(a, b inspect.Assessment) int
	// Needs returns what must be gone before this object may be released, given what is left of its pod; empty:
	// nothing.
	Needs func(o inspect.Assessment, rest []inspect.Assessment, s Settings) string
	// Preview returns why Do would refuse, without changing anything; nil if Plan knows everything.
	Preview func(ctx context.Context, t Tools, o inspect.Assessment) (refuse string)
	// Prepare runs once before the first object of a pod; may be nil.
	Prepare func(ctx context.Context, t Tools, all []inspect.Assessment) error
	// Do releases the object. It may be called again for an object that is partly released or gone.
	Do func(ctx context.Context, t Tools, o inspect.Assessment) error
	// Verify reports whether the object is gone. An error means that this is not known.
	Verify func(ctx context.Context, t Tools, o inspect.Assessment) (bool, error)
}

// Tools is what an action uses.
type Tools struct {
	Mutator    *mutate.Mutator
	Host       *host.Host
	Settings   Settings
	Log        *slog.Logger
	Drivers    *driverWatch             // what is known about CSI drivers
	FaultPoint func(point string) error // fault point between two changes of one step
	guard      func() error             // what is checked before each step; nil: nothing
	unmounted  map[string]bool          // of a plan: mount points that it releases before this step

	timeouts timeouts
}

// goOn is asked between two changes of one step, where the one before may have taken long: its error ends the step.
func (t Tools) goOn(point string) error {
	if err := t.FaultPoint(point); err != nil || t.guard == nil {
		return err
	}
	return t.guard()
}

// whyNot is the answer of a Preview whose question ended with an error.
func whyNot(err error) string {
	if refusal, ok := errors.AsType[mutate.Refusal](err); ok {
		return refusal.Why
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// timeouts bound the wait for answers that may never come. The zero value stands for the defaults.
type timeouts struct {
	server time.Duration // of a mount
	socket time.Duration // of a plugin
}

func (t timeouts) forServer() time.Duration { return cmp.Or(t.server, 5*time.Second) }
func (t timeouts) forSocket() time.Duration { return cmp.Or(t.socket, 2*time.Second) }

// after returns a Needs that wants objects of some kinds of the same pod gone first. A dead process that nobody has reaped
// holds nothing.
func after(kinds ...inspect.Kind) func(inspect.Assessment, []inspect.Assessment, Settings) string {
	return func(_ inspect.Assessment, rest []inspect.Assessment, _ Settings) string {
		for _, other := range rest {
			if slices.Contains(kinds, other.Kind) && !isDead(other) {
				return fmt.Sprintf("the %s %s of its pod still exists", other.Kind, shortID(other.ID))
			}
		}
		return ""
	}
}
