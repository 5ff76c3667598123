// Package release releases the leftovers of deleted pods. It acts only on objects that an inspection judged to be
// leftovers, one pod at a time, in the order of Actions. It removes the smallest blocker first and then gives the owner
// (kubelet, the runtime) time to finish its own work. It is the only package that is given a Mutator.
//
// Every step is: intent in the journal, guards, another check of the object's identity (by package mutate, right before
// the system call), the change, verification, end in the journal. A crash between any two of them is harmless: the next
// release starts from the state of the node, never from an old plan.
package release

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
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Action defines how leftovers of one kind are released.
type Action struct {
	Kind    object.Kind
	Order   int    // kinds with a lower value are released first
	Summary string // one line for the documentation

	// Plan returns what the action would do, or why not. It is pure.
	Plan func(o object.Assessment, s Settings) (does, refuse string)
	// Less orders the objects of one pod; nil keeps the order of the report.
	Less func(a, b object.Assessment) int
	// Needs returns which objects must be gone before this one may be released, given the rest of its pod; empty: none.
	Needs func(o object.Assessment, rest []object.Assessment, s Settings) string
	// Preview returns why Do would refuse, without changing anything; nil if Plan knows everything.
	Preview func(ctx context.Context, t Tools, o object.Assessment) (refuse string)
	// Prepare runs once before the first object of a pod; may be nil.
	Prepare func(ctx context.Context, t Tools, all []object.Assessment) error
	// Do releases the object. It may be called again for an object that is partly released or gone.
	Do func(ctx context.Context, t Tools, o object.Assessment) error
	// Verify reports whether the object is gone. An error means "not known".
	Verify func(ctx context.Context, t Tools, o object.Assessment) (bool, error)
}

// Tools is what an action uses.
type Tools struct {
	Mutator    *mutate.Mutator
	Host       *host.Host
	Settings   Settings
	Log        *slog.Logger
	Drivers    *driverWatch             // the history of CSI drivers
	FaultPoint func(point string) error // fault point between two changes of one step
	guard      func() error             // checked before each step; nil: no check
	unmounted  map[string]bool          // of a plan: mount points that it releases before this step

	timeouts timeouts
}

// goOn is called between two changes of one step, if the first may have taken long. An error ends the step.
func (t Tools) goOn(point string) error {
	if err := t.FaultPoint(point); err != nil || t.guard == nil {
		return err
	}
	return t.guard()
}

// whyNot turns the error of a Preview's question into its answer.
func whyNot(err error) string {
	if refusal, ok := errors.AsType[mutate.Refusal](err); ok {
		return refusal.Why
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// timeouts limit the wait for answers that may never come. The zero value means the defaults.
type timeouts struct {
	server time.Duration // of a mount
	socket time.Duration // of a plugin
}

func (t timeouts) forServer() time.Duration { return cmp.Or(t.server, 5*time.Second) }
func (t timeouts) forSocket() time.Duration { return cmp.Or(t.socket, 2*time.Second) }

// after returns a Needs that requires objects of some kinds of the same pod to be gone. A zombie holds no resources.
func after(kinds ...object.Kind) func(object.Assessment, []object.Assessment, Settings) string {
	return func(_ object.Assessment, rest []object.Assessment, _ Settings) string {
		for _, other := range rest {
			if slices.Contains(kinds, other.Kind) && !isDead(other) {
				return fmt.Sprintf("the %s %s of its pod still exists", other.Kind, shortID(other.ID))
			}
		}
		return ""
	}
}
