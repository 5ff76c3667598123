package release

import (
	"context"
	"errors"
	"slices"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release/actions"
	"github.com/nodeagent/nodeagent/pkg/remediate/wal"
)

// runSteps does the steps of one kind. Steps with a busy object are tried again while others succeed: of mounts stacked
// on one point the lower can only be unmounted after the upper.
func (p *podRelease) runSteps(ctx context.Context, action actions.Action, steps []StepOutcome) (acted bool) {
	var due []*StepOutcome
	for i := range steps {
		if steps[i].Result == "" {
			due = append(due, &steps[i])
		}
	}
	acted = len(due) > 0
	if acted && action.Prepare != nil {
		p.prepare(ctx, action, due)
	}
	for len(due) > 0 && !p.over() {
		var busy []*StepOutcome
		for _, s := range due {
			if p.runStep(ctx, action, s) {
				busy = append(busy, s)
			}
		}
		if len(busy) == len(due) {
			break
		}
		due = busy
	}
	return acted
}

// prepare runs the action's Prepare before the first object.
func (p *podRelease) prepare(ctx context.Context, action actions.Action, due []*StepOutcome) {
	objects := make([]object.Assessment, 0, len(due))
	for _, s := range due {
		objects = append(objects, s.Object)
		p.recordIntent(s.Step)
	}
	p.guard(ctx, due[0].Pod)
	if p.over() {
		return
	}
	limited, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	err := action.Prepare(limited, p.tools, objects)
	p.crashed(err)
	if !p.over() && !p.interrupted(ctx) && err != nil {
		p.stopFor("%s: %v", action.Kind, err)
	}
}

// runStep does one step: intent, guards, the step, verification, end.
func (p *podRelease) runStep(ctx context.Context, action actions.Action, s *StepOutcome) (busy bool) {
	if p.over() || p.interrupted(ctx) {
		return false
	}
	p.recordIntent(s.Step)
	p.hit("intent: " + string(s.Kind))
	p.guard(ctx, s.Pod)
	if p.over() {
		return false
	}
	failure := p.act(ctx, action, s)
	if p.over() {
		return false
	}
	if failure == nil {
		failure = p.verify(ctx, s.Object)
	}
	s.Result, s.Error = resultOfDo(failure)
	s.unbegun = wasNotBegun(failure)
	p.recordEnd(s.Step, s.Result, s.Error)
	if failure != nil {
		p.options.Log.Warn("not released", "pod", s.Pod.UID, "kind", s.Kind, "id", s.ID, "err", failure)
	}
	p.hit("end: " + string(s.Kind))
	if errors.Is(failure, mutate.ErrChanged) {
		p.stopFor("%v", failure)
	}
	return errors.Is(failure, mutate.ErrBusy)
}

// act makes the change. The guards are asked again between the changes of a step that has several.
func (p *podRelease) act(ctx context.Context, action actions.Action, s *StepOutcome) error {
	p.options.Log.Info("releasing", "pod", s.Pod.UID, "kind", s.Kind, "id", s.ID, "action", s.Description)
	tools := p.tools
	tools.Guard = func() error {
		p.guard(ctx, s.Pod)
		if p.over() {
			return errors.New(p.outcome.Why)
		}
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	failure := action.Do(limited, tools, s.Object)
	p.crashed(failure)
	if !p.over() {
		p.hit("done: " + string(s.Kind))
	}
	return failure
}

// recordIntent journals that a step is about to run, unless this is already journaled.
func (p *podRelease) recordIntent(step Step) {
	if slices.ContainsFunc(p.open, step.same) {
		return
	}
	p.open = append(p.open, step)
	p.write(Record{Event: Intent, Pod: step.Pod, Kind: step.Kind, ID: step.ID, Identity: step.Object.Identity,
		Does: step.Description})
}

// recordEnd journals how a step ended.
func (p *podRelease) recordEnd(step Step, result Result, why string) {
	p.open = slices.DeleteFunc(p.open, step.same)
	p.write(Record{Event: End, Pod: step.Pod, Kind: step.Kind, ID: step.ID, Result: result, Why: why})
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
	err := actions.Poll(ctx, p.options.Settings.VerifyWithin, func() (done bool, err error) {
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
