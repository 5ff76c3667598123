package remediate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// podRelease is the release of one pod while it goes on.
type podRelease struct {
	*Runner
	journal *journal
	outcome PodOutcome
	steps   []Step           // of the plan, by which nothing but what was judged at first is touched
	rest    []inspect.Judged // what is left of the pod, as last confirmed
	tried   bool             // the first round is over
}

// errStop ends the release of one pod; the reason is in its outcome.
var errStop = errors.New("stop")

// releasePod releases one pod. An error is one of the journal or of a fault point; everything else is told in the outcome.
func (r *Runner) releasePod(ctx context.Context, j *journal, steps []Step) (PodOutcome, error) {
	p := &podRelease{
		Runner: r, journal: j, steps: steps,
		outcome: PodOutcome{Group: steps[0].Group, Pod: steps[0].Pod},
	}
	if err := j.rotate(); err != nil {
		return p.outcome, err
	}
	// Begin is written first, so that even a crash in the question counts against the budget.
	if err := j.write(Record{At: r.options.Host.Clock(), Event: Begin, Group: p.outcome.Group, Pod: p.outcome.Pod}); err != nil {
		return p.outcome, err
	}
	if err := r.tools.Hit("begin"); err != nil {
		return p.outcome, err
	}
	err := p.confirm(ctx)
	if err == nil {
		err = p.rounds(ctx)
	}
	if err != nil && !errors.Is(err, errStop) {
		return p.outcome, err
	}
	p.conclude()
	if err := r.tools.Hit("finish"); err != nil {
		return p.outcome, err
	}
	return p.outcome, j.write(Record{
		At: r.options.Host.Clock(), Event: Finish, Group: p.outcome.Group, Pod: p.outcome.Pod,
		Result: p.outcome.Result, Why: p.outcome.Why,
	})
}

// rounds does all steps in their order. What failed, or was blocked, is tried once more when something else was released
// after it: the runtime cannot stop a container whose processes are frozen, but it can when they are gone.
func (p *podRelease) rounds(ctx context.Context) error {
	for steps := p.steps; len(steps) > 0; steps = p.takeFailed() {
		for _, kind := range kindsOf(steps) {
			if err := p.group(ctx, kind, steps); err != nil {
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

// takeFailed takes the steps out of the outcome that failed or were blocked and whose object is still there, if anything
// was released.
func (p *podRelease) takeFailed() []Step {
	if !slices.ContainsFunc(p.outcome.Steps, func(s StepOutcome) bool { return s.Result == Released }) {
		return nil
	}
	var failed []Step
	p.outcome.Steps = slices.DeleteFunc(p.outcome.Steps, func(s StepOutcome) bool {
		_, here := find(p.rest, s.Kind, s.ID)
		again := (s.Result == Failed || s.Result == Blocked) && here
		if again {
			s.NotNow = ""
			failed = append(failed, s.Step)
		}
		return again
	})
	return failed
}

func kindsOf(steps []Step) []inspect.Kind {
	var kinds []inspect.Kind
	for _, step := range steps {
		if !slices.Contains(kinds, step.Kind) {
			kinds = append(kinds, step.Kind)
		}
	}
	return kinds
}

// stopFor ends the release of this pod.
func (p *podRelease) stopFor(format string, args ...any) error {
	p.outcome.Result, p.outcome.Why = Stopped, fmt.Sprintf(format, args...)
	return errStop
}

// interrupted ends the release of this pod because the agent ends. It may be tried again at once.
func (p *podRelease) interrupted(ctx context.Context) bool {
	if ctx.Err() == nil {
		return false
	}
	p.outcome.Result, p.outcome.Why = Interrupted, context.Cause(ctx).Error()
	return true
}

// confirm asks all witnesses again about the pod. When one knows it, or could not be heard, or an object is another one
// now, the pod is left alone.
func (p *podRelease) confirm(ctx context.Context) error {
	if why := p.stop(ctx); why != "" && !p.interrupted(ctx) {
		return p.stopFor("%s", why)
	}
	report, err := p.options.Confirm(ctx, p.outcome.Pod.UID)
	if p.interrupted(ctx) {
		return errStop
	}
	if err != nil {
		return p.stopFor("the witnesses could not be asked again: %v", err)
	}
	if why := closedGate(report); why != "" {
		return p.stopFor("%s", why)
	}
	p.rest = nil
	for _, o := range report.Objects {
		if Group(o.Object) != p.outcome.Group {
			continue
		}
		switch o.Verdict {
		case inspect.Live, inspect.Unknown:
			return p.stopFor("%s %s is %s: %s", o.Kind, o.ID, o.Verdict, o.Why)
		case inspect.Leftover, inspect.Candidate:
			p.rest = append(p.rest, o)
		}
	}
	for _, step := range p.steps {
		if now, ok := find(p.rest, step.Kind, step.ID); ok && !sameIdentity(now.Identity, step.Object.Identity) {
			return p.stopFor("%s %s is no longer what was judged: %v instead of %v", step.Kind, step.ID, now.Identity, step.Object.Identity)
		}
	}
	return nil
}

// group releases all objects of one kind, gives the owners time to do the rest, and asks the witnesses again.
func (p *podRelease) group(ctx context.Context, kind inspect.Kind, steps []Step) error {
	action, ok := actionFor(kind)
	if !ok {
		p.skip(kind, steps)
		return nil
	}
	var todo []StepOutcome
	for _, step := range steps {
		if step.Kind == kind {
			todo = append(todo, p.first(action, step))
		}
	}
	acted, err := p.work(ctx, action, todo)
	p.outcome.Steps = append(p.outcome.Steps, todo...)
	if err != nil || !acted {
		return err
	}
	if err := p.tools.Hit("group done: " + string(kind)); err != nil {
		return err
	}
	if p.ownerFinishes(ctx) {
		p.rest = nil
		return nil
	}
	return p.confirm(ctx)
}

func (p *podRelease) skip(kind inspect.Kind, steps []Step) {
	for _, step := range steps {
		if step.Kind == kind {
			p.outcome.Steps = append(p.outcome.Steps, StepOutcome{Step: step, Result: resultOf(step)})
		}
	}
}

// first decides what happens to a step before anything is done. An empty result means that it is to be done.
func (p *podRelease) first(action Action, step Step) StepOutcome {
	s := StepOutcome{Step: step}
	now, ok := find(p.rest, step.Kind, step.ID)
	switch {
	case !ok:
		s.Result = Vanished
		return s
	case !step.Acts():
		s.Result = resultOf(step)
		return s
	case now.Verdict != inspect.Leftover:
		s.Result, s.NotNow = Blocked, fmt.Sprintf("is %s now: %s", now.Verdict, now.Why)
		return s
	}
	s.Object = now // with its holders and state of this moment
	if action.Needs != nil {
		if why := action.Needs(now, p.rest, p.options.Settings); why != "" {
			s.Result, s.NotNow = Blocked, why
		}
	}
	return s
}

// ownerFinishes gives kubelet and the runtime time to do what they can do now that something is out of their way. It only
// looks at the node itself. It reports whether all that was planned is gone.
func (p *podRelease) ownerFinishes(ctx context.Context) bool {
	gone := false
	_ = poll(ctx, p.options.Settings.OwnerGrace, func() (bool, error) {
		gone = true
		for _, o := range p.rest {
			action, ok := actionFor(o.Kind)
			if !ok {
				continue
			}
			if here, err := action.Gone(ctx, p.tools, o); err != nil || !here {
				gone = false
				return false, nil
			}
		}
		return true, nil
	})
	return gone
}

// conclude sums up.
func (p *podRelease) conclude() {
	if p.outcome.Result != "" { // stopped
		for _, step := range p.steps {
			if !slices.ContainsFunc(p.outcome.Steps, func(s StepOutcome) bool { return s.Kind == step.Kind && s.ID == step.ID }) {
				step.NotNow = cmp.Or(step.NotNow, p.outcome.Why)
				p.outcome.Steps = append(p.outcome.Steps, StepOutcome{Step: step, Result: Stopped})
			}
		}
		return
	}
	p.outcome.Result = Released
	for i := range p.outcome.Steps {
		s := &p.outcome.Steps[i]
		if s.Result == Released || s.Result == Vanished {
			continue
		}
		if _, here := find(p.rest, s.Kind, s.ID); !here {
			s.Result = Vanished // what the step could not do was done by the owner, or by a later step
			continue
		}
		p.outcome.Result, p.outcome.Why = Incomplete, cmp.Or(p.outcome.Why, s.Error, s.NotNow)
	}
}
