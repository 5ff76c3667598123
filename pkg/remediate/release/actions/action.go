// Package actions releases the leftovers of deleted pods, one file a kind. An action looks at an object, makes the
// change and verifies it, each in a function of its own; it does not decide whether it may: its caller asks the guards
// and keeps the journal. The identity of an object is compared by package mutate, right before each system call.
package actions

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release/csi"
)

// Action defines how leftovers of one kind are released.
type Action struct {
	Kind object.Kind

	// Plan returns what the action would do, or why not. It is pure.
	Plan func(o object.Assessment, s Settings) (does, refuse string)
	// Less orders the objects of one pod; nil keeps the order of the report.
	Less func(a, b object.Assessment) int
	// Needs returns which objects must be gone before this one may be released, given the rest of its pod; empty: none.
	Needs func(o object.Assessment, rest []object.Assessment, s Settings) string
	// Look returns why Do would refuse, without changing anything; nil if Plan knows everything.
	Look func(ctx context.Context, t Tools, o object.Assessment) (refuse string)
	// Prepare runs once before the first object of a pod; may be nil.
	Prepare func(ctx context.Context, t Tools, all []object.Assessment) error
	// Do releases the object. It may be called again for an object that is partly released or gone.
	Do func(ctx context.Context, t Tools, o object.Assessment) error
	// Verify reports whether the object is gone. An error means "not known".
	Verify func(ctx context.Context, t Tools, o object.Assessment) (bool, error)
}

// Table holds at most one action for each kind.
type Table []Action

// All lists all actions in the order in which leftovers of one pod are released: first the runtime's objects; CNI
// plugins take down the network before its namespace is removed; volumes go before cgroups, so that their memory is not
// charged to the parent; the directory and the logs are last.
func All() Table {
	all := Table{
		sandboxAction(),
		containerAction(),
		containerdContainerAction(),
		processAction(),
		shimAction(),
		rootfsAction(),
		attachmentAction(),
		netnsAction(),
		linkAction(),
		ipamLeaseAction(),
		leaseAction(),
		sandboxDirectoryAction(),
		mountAction(),
		cgroupAction(),
		podDirectoryAction(),
		systemdUnitAction(),
		podLogsAction(),
	}
	for i := range all {
		all[i] = onlyIdentified(all[i])
	}
	return all
}

// On returns the action on a kind.
func (all Table) On(kind object.Kind) (Action, bool) {
	for _, action := range all {
		if action.Kind == kind {
			return action, true
		}
	}
	return Action{}, false
}

// Settings are the limits of the actions.
type Settings struct {
	AllowEmptyDir bool // move the data of disk-backed emptyDirs to quarantine
	UnmountCSI    bool // unmount CSI volumes even if their driver is alive
	ForceNetwork  bool // remove a network namespace even if CNI DEL failed

	QuarantineBytes uint64        // the quarantine holds at most this
	ContainerGrace  time.Duration // between a container's stop signal and SIGKILL
	ProcessGrace    time.Duration // between SIGTERM and SIGKILL
	VerifyWithin    time.Duration // a step must show its effect within this
}

// Tools is what an action uses.
type Tools struct {
	Mutator    *mutate.Mutator
	Host       *host.Host
	Settings   Settings
	Log        *slog.Logger
	CSI        *csi.Evidence
	FaultPoint func(point string) error // fault point between two changes of one step
	Guard      func() error             // checked between two changes of one step; nil: no check
	Unmounted  map[string]bool          // of a plan: mount points that it releases before this step

	ServerTimeout time.Duration // of the server of a mount; 0: the default
}

// then makes the next change of a step unless err, of the one before, is an error. That may have taken long: the guards
// are asked again.
func (t Tools) then(err error, point string, change func() error) error {
	if err == nil {
		err = t.FaultPoint(point)
	}
	if err == nil && t.Guard != nil {
		err = t.Guard()
	}
	if err == nil {
		err = change()
	}
	return err
}

// within names the part of a step that failed.
func within(part string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", part, err)
	}
	return nil
}

// unlisted verifies an object of a runtime: the runtime no longer lists it.
func unlisted[T any](
	ctx context.Context, what string, list func(context.Context) ([]T, error), is func(T) bool,
) (bool, error) {
	all, err := listed(ctx, what, list)
	return err == nil && !slices.ContainsFunc(all, is), err
}

func listed[T any](ctx context.Context, what string, list func(context.Context) ([]T, error)) ([]T, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second) // a stopped runtime accepts connections and never answers
	defer cancel()
	return host.Ask(ctx, what, list)
}

func refuse(format string, args ...any) error {
	return mutate.Refusal{Why: fmt.Sprintf(format, args...)}
}

// whyNot turns the error of a look's question into its answer.
func whyNot(err error) string {
	if refusal, ok := errors.AsType[mutate.Refusal](err); ok {
		return refusal.Why
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// after returns a Needs that requires objects of some kinds of the same pod to be gone. A zombie holds no resources.
func after(kinds ...object.Kind) func(object.Assessment, []object.Assessment, Settings) string {
	return func(_ object.Assessment, rest []object.Assessment, _ Settings) string {
		for _, other := range rest {
			if slices.Contains(kinds, other.Kind) && !other.IsDead() {
				return fmt.Sprintf("the %s %s of its pod still exists", other.Kind, shortID(other.ID))
			}
		}
		return ""
	}
}

// rank orders the objects for which first holds before others.
func rank(first bool) int {
	if first {
		return 0
	}
	return 1
}

// shortID abbreviates an ID for users.
func shortID(id string) string { return id[:min(len(id), 13)] }

// fileGone verifies objects whose ID is a path on the node's own filesystems.
func fileGone(_ context.Context, t Tools, o object.Assessment) (bool, error) {
	_, err := t.Host.Files.Stat(o.ID)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return false, err
}

// Poll calls check until it is done, fails, or the time most has passed.
func Poll(ctx context.Context, most time.Duration, check func() (bool, error)) error {
	deadline := time.NewTimer(most)
	defer deadline.Stop()
	tick := time.NewTicker(min(max(most/20, 20*time.Millisecond), time.Second))
	defer tick.Stop()
	for {
		if done, err := check(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			return nil
		case <-tick.C:
		}
	}
}
