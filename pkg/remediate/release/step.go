package release

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/wal"
)

// runSteps does the steps of one kind. Steps with a busy object are tried again while others succeed: of mounts stacked
// on one point the lower can only be unmounted after the upper.
func (p *podRelease) runSteps(ctx context.Context, action Action, steps []StepOutcome) (acted bool, err error) {
	due := slices.DeleteFunc(indexes(steps), func(i int) bool { return steps[i].Result != "" })
	if len(due) == 0 {
		return false, nil
	}
	if action.Prepare != nil {
		if err := p.prepare(ctx, action, steps, due); err != nil {
			return true, err
		}
	}
	for len(due) > 0 {
		var again []int
		for _, i := range due {
			busy, err := p.runStep(ctx, action, &steps[i])
			if err != nil {
				return true, err
			}
			if busy {
				again = append(again, i)
			}
		}
		if len(again) == len(due) {
			break
		}
		due = again
	}
	return true, nil
}

func indexes(steps []StepOutcome) []int {
	all := make([]int, len(steps))
	for i := range all {
		all[i] = i
	}
	return all
}

// prepare runs the action's Prepare before the first object.
func (p *podRelease) prepare(ctx context.Context, action Action, steps []StepOutcome, due []int) error {
	objects := make([]object.Assessment, 0, len(due))
	for _, i := range due {
		objects = append(objects, steps[i].Object)
		if err := p.recordIntent(steps[i].Step); err != nil {
			return err
		}
	}
	if err := p.guard(ctx, steps[due[0]].Pod); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	err := action.Prepare(limited, p.tools, objects)
	if crash := (injectedCrash{}); errors.As(err, &crash) {
		return crash
	}
	if p.interrupted(ctx) {
		return errStop
	}
	if err != nil {
		return p.stopFor("%s: %v", action.Kind, err)
	}
	return nil
}

// runStep does one step: intent, guards, the step, verification, end.
func (p *podRelease) runStep(ctx context.Context, action Action, s *StepOutcome) (busy bool, err error) {
	if p.interrupted(ctx) {
		return false, errStop
	}
	if err := p.recordIntent(s.Step); err != nil {
		return false, err
	}
	if err := p.tools.FaultPoint("intent: " + string(s.Kind)); err != nil {
		return false, err
	}
	if err := p.guard(ctx, s.Pod); err != nil {
		return false, err
	}
	p.options.Log.Info("releasing", "pod", s.Pod.UID, "kind", s.Kind, "id", s.ID, "action", s.Description)
	tools := p.tools
	tools.guard = func() error { return p.guard(ctx, s.Pod) }
	limited, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	failure := action.Do(limited, tools, s.Object)
	if crash := (injectedCrash{}); errors.As(failure, &crash) {
		return false, crash
	}
	if errors.Is(failure, errStop) {
		return false, errStop
	}
	if err := p.tools.FaultPoint("done: " + string(s.Kind)); err != nil {
		return false, err
	}
	if failure == nil {
		failure = p.verify(ctx, s.Object)
	}
	s.Result, s.Error = resultOfDo(failure)
	s.unbegun = wasNotBegun(failure)
	if err := p.recordEnd(s.Step, s.Result, s.Error); err != nil {
		return false, err
	}
	if failure != nil {
		p.options.Log.Warn("not released", "pod", s.Pod.UID, "kind", s.Kind, "id", s.ID, "err", failure)
	}
	if err := p.tools.FaultPoint("end: " + string(s.Kind)); err != nil {
		return false, err
	}
	if errors.Is(failure, mutate.ErrChanged) {
		return false, p.stopFor("%v", failure)
	}
	return errors.Is(failure, mutate.ErrBusy), nil
}

// recordIntent journals that a step is about to run, unless this is already journaled.
func (p *podRelease) recordIntent(step Step) error {
	if slices.ContainsFunc(p.open, step.same) {
		return nil
	}
	p.open = append(p.open, step)
	return p.journal.write(Record{
		At: p.options.Host.Clock(), Event: Intent, Group: p.outcome.Group, Pod: step.Pod, Kind: step.Kind, ID: step.ID,
		Identity: step.Object.Identity, Does: step.Description,
	})
}

// recordEnd journals how a step ended.
func (p *podRelease) recordEnd(step Step, result Result, why string) error {
	p.open = slices.DeleteFunc(p.open, step.same)
	return p.journal.write(Record{
		At: p.options.Host.Clock(), Event: End, Group: p.outcome.Group, Pod: step.Pod, Kind: step.Kind, ID: step.ID,
		Result: result, Why: why,
	})
}

// unproven is the error of a step that ran with unknown effect.
type unproven struct{ error }

func (u unproven) Unwrap() error { return u.error }

func resultOfDo(failure error) (Result, string) {
	if failure == nil {
		return Released, ""
	}
	if refusal, ok := errors.AsType[mutate.Refusal](failure); ok {
		return Refused, refusal.Why
	}
	if doubt, ok := errors.AsType[unproven](failure); ok {
		return CouldNotTell, wal.Clip("whether it is gone: " + doubt.Error())
	}
	return Failed, wal.Clip(failure.Error())
}

// wasNotBegun reports whether a step failed before any change, since a requirement is missing or could not be asked. A
// busy object was tried.
func wasNotBegun(failure error) bool {
	return failure != nil && mutate.WasNotBegun(failure) && !errors.Is(failure, mutate.ErrBusy)
}

// verify waits until the object is gone.
func (p *podRelease) verify(ctx context.Context, o object.Assessment) error {
	gone := false
	err := poll(ctx, p.options.Settings.VerifyWithin, func() (done bool, err error) {
		gone, err = p.gone(ctx, o)
		return gone, err
	})
	if err != nil {
		return unproven{err}
	}
	if !gone {
		return errors.New("it still exists")
	}
	return nil
}

// poll calls check until it is done, fails, or the time most has passed.
func poll(ctx context.Context, most time.Duration, check func() (bool, error)) error {
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
