package release

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/wal"
)

// podRelease is the release of one pod in progress.
type podRelease struct {
	*Runner
	journal *journal
	held    func() error // the lock
	outcome PodOutcome
	steps   []Step              // of the plan: only objects evaluated at the beginning are touched
	rest    []object.Assessment // the pod's remaining objects, as last confirmed
	open    []Step              // intents in the journal without an end
	tried   bool                // the first round is over
	unasked bool                // it ended because a guard could not be asked, which is no failure of the release
}

// errStop ends the release of one pod; the reason is in its outcome.
var errStop = errors.New("stop")

// releasePod releases one pod. An error comes from the journal or a fault point; everything else is in the outcome.
func (r *Runner) releasePod(ctx context.Context, j *journal, held func() error, steps []Step) (PodOutcome, error) {
	p := &podRelease{
		Runner: r, journal: j, held: held, steps: steps,
		outcome: PodOutcome{Group: steps[0].Group, Pod: steps[0].Pod},
	}
	if err := j.rotate(); err != nil {
		return p.outcome, err
	}
	// Begin is written first, so that even a crash during confirm counts against the budget.
	if err := j.write(Record{At: r.options.Host.Clock(), Event: Begin, Group: p.outcome.Group,
		Pod: p.outcome.Pod}); err != nil {
		return p.outcome, err
	}
	if err := r.tools.FaultPoint("begin"); err != nil {
		return p.outcome, err
	}
	err := p.confirm(ctx)
	if err == nil {
		err = p.releaseKinds(ctx)
	}
	if err != nil && !errors.Is(err, errStop) {
		return p.outcome, err
	}
	p.conclude()
	for _, step := range slices.Clone(p.open) { // intended but not done
		if err := p.recordEnd(step, Stopped, p.outcome.Why); err != nil {
			return p.outcome, err
		}
	}
	if err := r.tools.FaultPoint("finish"); err != nil {
		return p.outcome, err
	}
	return p.outcome, j.write(Record{
		At: r.options.Host.Clock(), Event: Finish, Group: p.outcome.Group, Pod: p.outcome.Pod,
		Result: p.outcome.Result, Why: p.outcome.Why, Failed: p.failed(),
	})
}

// releaseKinds does all steps in order. Failed or blocked steps are tried once more if any object was released: the
// runtime cannot stop a container whose processes are frozen, but it can when they are gone.
func (p *podRelease) releaseKinds(ctx context.Context) error {
	for steps := p.steps; len(steps) > 0; steps = p.takeFailed() {
		for _, kind := range kindsOf(steps) {
			if err := p.releaseKind(ctx, kind, steps); err != nil {
				return err
			}
		}
		if p.tried {
			break
		}
		p.tried = true
	}
	return nil
}

// takeFailed removes from the outcome, and returns, the steps that failed, were blocked, or were refused by a look, and
// whose object still exists, if any object was released.
func (p *podRelease) takeFailed() []Step {
	if !slices.ContainsFunc(p.outcome.Steps, func(s StepOutcome) bool { return s.Result == Released }) {
		return nil
	}
	var failed []Step
	p.outcome.Steps = slices.DeleteFunc(p.outcome.Steps, func(s StepOutcome) bool {
		_, here := findObject(p.rest, s.Kind, s.ID)
		again := here && (slices.Contains([]Result{Failed, Blocked, CouldNotTell}, s.Result) || s.Result == Refused && s.unbegun)
		if again {
			s.Blocked = ""
			failed = append(failed, s.Step)
		}
		return again
	})
	return failed
}

func kindsOf(steps []Step) []object.Kind {
	var kinds []object.Kind
	for _, step := range steps {
		if !slices.Contains(kinds, step.Kind) {
			kinds = append(kinds, step.Kind)
		}
	}
	return kinds
}

// stopFor ends the release of this pod because it must not go on.
func (p *podRelease) stopFor(format string, args ...any) error {
	return p.stopAs(Stopped, format, args...)
}

// couldNotTell ends the release of this pod because a necessary fact is unknown.
func (p *podRelease) couldNotTell(format string, args ...any) error {
	return p.stopAs(CouldNotTell, format, args...)
}

func (p *podRelease) stopAs(result Result, format string, args ...any) error {
	p.outcome.Result, p.outcome.Why = result, wal.Clip(fmt.Sprintf(format, args...))
	return errStop
}

// interrupted ends the release of this pod when the agent shuts down. It may be tried again at once.
func (p *podRelease) interrupted(ctx context.Context) bool {
	if ctx.Err() == nil {
		return false
	}
	p.outcome.Result, p.outcome.Why = Interrupted, context.Cause(ctx).Error()
	return true
}

// releaseKind releases all objects of one kind, gives their owners time to finish, and asks the witnesses again.
func (p *podRelease) releaseKind(ctx context.Context, kind object.Kind, steps []Step) error {
	action, ok := p.options.actions.on(kind)
	if !ok {
		p.skip(kind, steps)
		return nil
	}
	var todo []StepOutcome
	for _, step := range steps {
		if step.Kind == kind {
			todo = append(todo, p.precheck(ctx, action, step))
		}
	}
	acted, err := p.runSteps(ctx, action, todo)
	p.outcome.Steps = append(p.outcome.Steps, todo...)
	if err != nil || !acted {
		return err
	}
	if err := p.tools.FaultPoint("group done: " + string(kind)); err != nil {
		return err
	}
	p.ownerFinishes(ctx)
	return p.confirm(ctx)
}

func (p *podRelease) skip(kind object.Kind, steps []Step) {
	for _, step := range steps {
		if step.Kind == kind {
			p.outcome.Steps = append(p.outcome.Steps, StepOutcome{Step: step, Result: resultOf(step)})
		}
	}
}

// precheck decides about a step before any change. An empty result means that the step is due.
func (p *podRelease) precheck(ctx context.Context, action Action, step Step) StepOutcome {
	s := StepOutcome{Step: step}
	now, ok := findObject(p.rest, step.Kind, step.ID)
	switch {
	case !ok:
		s.Result = Vanished
		return s
	case !step.Acts():
		s.Result = resultOf(step)
		return s
	case now.Verdict != object.Leftover:
		s.Result, s.Blocked = Blocked, fmt.Sprintf("is %s now: %s", now.Verdict, now.Why)
		return s
	}
	s.Object = now // with its current holders and state
	if action.Needs != nil {
		if why := action.Needs(now, p.rest, p.options.Settings); why != "" {
			s.Result, s.Blocked = Blocked, why
			return s
		}
	}
	if action.Preview != nil {
		asking, cancel := context.WithTimeout(ctx, askLimit)
		defer cancel()
		if why := action.Preview(asking, p.tools, now); why != "" && ctx.Err() == nil {
			s.Result, s.Error, s.unbegun = Refused, why, true
		}
	}
	return s
}

// ownerFinishes gives kubelet and the runtime time to continue after a blocker is gone, but no more than they need. It
// only reads the node, and is no proof.
func (p *podRelease) ownerFinishes(ctx context.Context) {
	_ = poll(ctx, p.options.Settings.OwnerGrace, func() (bool, error) {
		for _, o := range p.rest {
			if gone, err := p.gone(ctx, o); err != nil || !gone {
				return false, nil //nolint:nilerr // checked again until the grace period is over
			}
		}
		return true, nil
	})
}

// conclude sets the final results. For objects missing from the last inspection, made after the last change, confirm
// has proven that they are gone.
func (p *podRelease) conclude() {
	if p.outcome.Result != "" {
		p.notReached()
		return
	}
	p.outcome.Result = Released
	for i := range p.outcome.Steps {
		s := &p.outcome.Steps[i]
		now, here := findObject(p.rest, s.Kind, s.ID)
		switch {
		case here && isDead(now): // it holds nothing but its PID
		case here && s.Mode != On && kinds.Of(s.Kind).Minor(): // its release was not requested
		case here:
			p.markLeft(s)
		case s.Result != Released:
			s.Result = Vanished // released by its owner or by a later step
		}
	}
	for _, o := range p.rest {
		if !isDead(o) && !slices.ContainsFunc(p.steps, func(s Step) bool { return s.Kind == o.Kind && s.ID == o.ID }) {
			s := StepOutcome{Step: stepOf(o, Off, "", answer("plan", "appeared after the plan was made", "")), Result: NotActed}
			p.markLeft(&s)
			p.outcome.Steps = append(p.outcome.Steps, s)
		}
	}
}

// notReached sets the results of the steps not begun when the release stopped.
func (p *podRelease) notReached() {
	for i := range p.outcome.Steps {
		if s := &p.outcome.Steps[i]; s.Result == "" {
			s.Result, s.Blocked = Stopped, p.outcome.Why
		}
	}
	for _, step := range p.steps {
		if !slices.ContainsFunc(p.outcome.Steps, func(s StepOutcome) bool { return s.same(step) }) {
			step.Blocked = cmp.Or(step.Blocked, p.outcome.Why)
			p.outcome.Steps = append(p.outcome.Steps, StepOutcome{Step: step, Result: Stopped})
		}
	}
}

const existsAgain = "it exists again"

// markLeft records that an object of the pod still exists.
func (p *podRelease) markLeft(s *StepOutcome) {
	if s.Result == Released || s.Result == Vanished {
		s.Result, s.Error = Failed, existsAgain
	}
	why := fmt.Sprintf("%s %s: %s", s.Kind, s.ID, cmp.Or(s.Error, s.Blocked))
	p.outcome.Result, p.outcome.Why = Incomplete, cmp.Or(p.outcome.Why, wal.Clip(why))
}
