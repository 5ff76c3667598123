package release

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release/actions"
	"github.com/nodeagent/nodeagent/pkg/remediate/wal"
)

// podRelease is the release of one pod in progress. The outcome gets its result when the release of the pod stops early
// or concludes; err ends the whole release like a crash. After either, the methods change nothing more: see over.
type podRelease struct {
	*Runner
	journal *journal
	held    func() error // the lock
	outcome PodOutcome
	err     error               // of the journal or a fault point
	steps   []Step              // of the plan: only objects evaluated at the beginning are touched
	rest    []object.Assessment // the pod's remaining objects, as last confirmed
	open    []Step              // intents in the journal without an end
	unasked bool                // it ended because a guard could not be asked, which is no failure of the release
}

// releasePod releases one pod. An error comes from the journal or a fault point; everything else is in the outcome.
func (r *Runner) releasePod(ctx context.Context, j *journal, held func() error, steps []Step) (PodOutcome, error) {
	p := &podRelease{
		Runner: r, journal: j, held: held, steps: steps,
		outcome: PodOutcome{Group: steps[0].Group, Pod: steps[0].Pod}, err: j.Rotate(),
	}
	// Begin is written first, so that even a crash during confirm counts against the budget.
	p.write(Record{Event: Begin, Pod: p.outcome.Pod})
	p.hit("begin")
	p.confirm(ctx)
	p.round(ctx, p.steps)
	p.round(ctx, p.takeFailed())
	p.conclude()
	for _, step := range slices.Clone(p.open) { // intended but not done
		p.recordEnd(step, Stopped, p.outcome.Why)
	}
	p.hit("finish")
	p.write(Record{Event: Finish, Pod: p.outcome.Pod, Result: p.outcome.Result, Why: p.outcome.Why, Failed: p.failed()})
	return p.outcome, p.err
}

// over reports whether no more steps may run.
func (p *podRelease) over() bool { return p.err != nil || p.outcome.Result != "" }

// write journals a record, unless the release ends like a crash.
func (p *podRelease) write(r Record) {
	if p.err == nil {
		r.At, r.Group = p.options.Host.Clock(), p.outcome.Group
		p.err = p.journal.write(r)
	}
}

// hit passes a fault point.
func (p *podRelease) hit(point string) {
	if p.err == nil {
		p.err = p.tools.FaultPoint(point)
	}
}

// crashed notes that an action met a fault point.
func (p *podRelease) crashed(failure error) {
	if crash := (injectedCrash{}); p.err == nil && errors.As(failure, &crash) {
		p.err = crash
	}
}

// stopFor ends the release of this pod because it must not go on.
func (p *podRelease) stopFor(format string, args ...any) { p.stopAs(Stopped, format, args...) }

// couldNotTell ends the release of this pod because a necessary fact is unknown.
func (p *podRelease) couldNotTell(format string, args ...any) {
	p.stopAs(CouldNotTell, format, args...)
}

func (p *podRelease) stopAs(result Result, format string, args ...any) {
	if !p.over() {
		p.outcome.Result, p.outcome.Why = result, wal.Clip(fmt.Sprintf(format, args...))
	}
}

// interrupted ends the release of this pod when the agent shuts down. It may be tried again at once.
func (p *podRelease) interrupted(ctx context.Context) bool {
	if ctx.Err() == nil {
		return false
	}
	p.outcome.Result, p.outcome.Why = Interrupted, context.Cause(ctx).Error()
	return true
}

// round does steps, which are in the order of their kinds.
func (p *podRelease) round(ctx context.Context, steps []Step) {
	for _, same := range chunks(steps, func(s Step) string { return string(s.Kind) }) {
		p.releaseKind(ctx, same)
	}
}

// takeFailed removes from the outcome, and returns, the steps that failed, were blocked, or were refused by a look, and
// whose object still exists, if any object was released. They are tried once more: the runtime cannot stop a container
// whose processes are frozen, but it can when they are gone.
func (p *podRelease) takeFailed() []Step {
	if p.over() || !slices.ContainsFunc(p.outcome.Steps, func(s StepOutcome) bool { return s.Result == Released }) {
		return nil
	}
	var failed []Step
	p.outcome.Steps = slices.DeleteFunc(p.outcome.Steps, func(s StepOutcome) bool {
		_, here := object.Find(p.rest, s.Kind, s.ID)
		again := here && (slices.Contains([]Result{Failed, Blocked, CouldNotTell}, s.Result) ||
			s.Result == Refused && s.unbegun)
		if again {
			s.Blocked = ""
			failed = append(failed, s.Step)
		}
		return again
	})
	return failed
}

// releaseKind releases all objects of one kind, gives their owners time to finish, and asks the witnesses again.
func (p *podRelease) releaseKind(ctx context.Context, steps []Step) {
	if p.over() {
		return
	}
	action, _ := p.options.table.On(steps[0].Kind)
	todo := make([]StepOutcome, 0, len(steps))
	for _, step := range steps {
		todo = append(todo, p.precheck(ctx, action, step))
	}
	acted := p.runSteps(ctx, action, todo)
	p.outcome.Steps = append(p.outcome.Steps, todo...)
	if acted && !p.over() {
		p.hit("group done: " + string(steps[0].Kind))
		p.ownerFinishes(ctx)
		p.confirm(ctx)
	}
}

// precheck decides about a step before any change. An empty result means that the step is due.
func (p *podRelease) precheck(ctx context.Context, action actions.Action, step Step) StepOutcome {
	s := StepOutcome{Step: step}
	now, here := object.Find(p.rest, step.Kind, step.ID)
	switch {
	case action.Do == nil, here && !step.Acts():
		s.Result = resultOf(step)
	case !here:
		s.Result = Vanished
	case now.Verdict != object.Leftover:
		s.Result, s.Blocked = Blocked, fmt.Sprintf("is %s now: %s", now.Verdict, now.Why)
	default:
		s.Object = now // with its current holders and state
		p.look(ctx, action, &s)
	}
	return s
}

// look asks the action whether a step must wait for others, or would be refused.
func (p *podRelease) look(ctx context.Context, action actions.Action, s *StepOutcome) {
	if action.Needs != nil {
		s.Blocked = action.Needs(s.Object, p.rest, p.options.Settings.forActions())
	}
	if s.Blocked != "" {
		s.Result = Blocked
		return
	}
	if action.Look == nil {
		return
	}
	asking, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	if why := action.Look(asking, p.tools, s.Object); why != "" && ctx.Err() == nil {
		s.Result, s.Error, s.unbegun = Refused, why, true
	}
}

// ownerFinishes gives kubelet and the runtime time to continue after a blocker is gone, but no more than they need. It
// only reads the node, and is no proof.
func (p *podRelease) ownerFinishes(ctx context.Context) {
	if p.over() {
		return
	}
	_ = actions.Poll(ctx, p.options.Settings.OwnerGrace, func() (bool, error) {
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
	switch {
	case p.err != nil:
	case p.outcome.Result != "":
		p.notReached()
	default:
		p.outcome.Result = Released
		p.finalResults()
	}
}

// finalResults compares the results with the last inspection.
func (p *podRelease) finalResults() {
	for i := range p.outcome.Steps {
		s := &p.outcome.Steps[i]
		now, here := object.Find(p.rest, s.Kind, s.ID)
		switch {
		case here && now.IsDead(): // it holds nothing but its PID
		case here && s.Mode != On && kinds.Of(s.Kind).Minor(): // its release was not requested
		case here:
			p.markLeft(s)
		case s.Result != Released:
			s.Result = Vanished // released by its owner or by a later step
		}
	}
	for _, o := range p.rest {
		if !o.IsDead() && !slices.ContainsFunc(p.steps, func(s Step) bool { return s.Kind == o.Kind && s.ID == o.ID }) {
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
