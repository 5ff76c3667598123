package release

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// confirm inspects the whole node again and asks all witnesses about the pod. If a witness knows it, or an object was
// replaced, the release of the pod stops; if anything could not be read or evaluated, it ends as CouldNotTell. An
// object that is not listed is not necessarily gone: its action verifies that.
func (p *podRelease) confirm(ctx context.Context) {
	if p.over() {
		return
	}
	stop := killSwitchGuard(p.options.Host.Files, p.options.Settings.KillSwitch)
	if stop.Open {
		stop = p.paused(ctx)
	}
	switch {
	case p.interrupted(ctx):
	case stop.Unknown:
		p.unasked = true
		p.couldNotTell("%s", stop.Why)
	case !stop.Open:
		p.stopFor("%s", stop.Why)
	default:
		p.askWitnesses(ctx)
	}
}

func (p *podRelease) askWitnesses(ctx context.Context) {
	asking, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	report, err := p.options.Confirm(asking, p.outcome.Pod.UID)
	switch {
	case p.interrupted(ctx):
	case err != nil:
		p.couldNotTell("ask the witnesses again: %v", err)
	default:
		report = kinds.Releasable(report)
		if p.evaluate(ctx, report); p.over() {
			p.markReturned(report)
		}
	}
}

// evaluate compares an inspection with the plan. A difference ends the release of the pod.
func (p *podRelease) evaluate(ctx context.Context, report object.Report) {
	if why := inspectionError(report); why != "" {
		p.couldNotTell("the inspection is incomplete: %s", why)
	}
	if why := firstClosed(gateGuards(report)); why != "" {
		p.stopFor("%s", why)
	}
	p.updateRest(report)
	exists := func(o object.Assessment) bool { return !o.IsDead() }
	if why := firstClosed(breaker(report, p.rest, "")); why != "" && slices.ContainsFunc(p.rest, exists) {
		p.stopFor("%s", why)
	}
	for _, step := range p.steps {
		p.checkStep(ctx, report, step)
	}
}

// markReturned corrects the outcome of steps of a release that ends early: an object verified to be gone exists again
// if the inspection that ends the release lists it as the pod's.
func (p *podRelease) markReturned(report object.Report) {
	for i := range p.outcome.Steps {
		s := &p.outcome.Steps[i]
		o, here := object.Find(report.Objects, s.Kind, s.ID)
		if here && s.isGone() && !o.IsDead() && p.belongsToPod(o.Object) {
			s.Result, s.Error = Failed, existsAgain
		}
	}
}

// holders is the name of the search for holders in the errors of an inspection.
const holders = "holders"

// inspectionError returns the unread part of an inspection. Missing holders do not matter here: they change neither
// which objects exist nor who owns them. For kinds that do little harm, the steps verify the objects.
func inspectionError(report object.Report) string {
	for _, failure := range report.Errors {
		if failure.What != holders && !kinds.Of(object.Kind(failure.What)).Minor() {
			return failure.What + ": " + failure.Error
		}
	}
	return ""
}

// updateRest records the remaining objects of the pod.
func (p *podRelease) updateRest(report object.Report) {
	p.rest = nil
	for _, o := range report.Objects {
		if !p.belongsToPod(o.Object) {
			continue
		}
		why := p.options.Settings.optedOut(cmp.Or(o.Pod.Namespace, p.outcome.Pod.Namespace))
		if why = cmp.Or(why, p.options.Settings.podOptedOut(o.Object)); why != "" {
			p.stopFor("%s %s: %s", o.Kind, o.ID, why)
		}
		if kinds.Of(o.Kind).Minor() && o.Verdict != object.Leftover && o.Verdict != object.Live {
			continue // its proof may take a day, and no step waits for it
		}
		switch o.Verdict {
		case object.Leftover, object.Candidate:
			p.rest = append(p.rest, withUnknownHolders(o, report))
		case object.Live:
			p.stopFor("%s %s is %s: %s", o.Kind, o.ID, o.Verdict, o.Why)
		case object.Foreign: // never touched; if it was planned, checkStep finds it
		default:
			p.couldNotTell("%s %s is %s: %s", o.Kind, o.ID, cmp.Or(o.Verdict, object.Unknown), o.Why)
		}
	}
}

// belongsToPod reports whether an object belongs to this pod: by its UID, or, if it has none, by the pod's sandbox.
func (p *podRelease) belongsToPod(o object.Object) bool {
	if o.Pod.UID != "" || o.SandboxID == "" {
		return Group(o) == p.outcome.Group
	}
	return slices.ContainsFunc(p.steps, func(s Step) bool {
		return s.Object.SandboxID == o.SandboxID || s.Kind == object.Sandbox && s.ID == o.SandboxID
	})
}

// withUnknownHolders adds a holder when the search for holders failed, so that the object does not look unused.
func withUnknownHolders(o object.Assessment, report object.Report) object.Assessment {
	for _, failure := range report.Errors {
		if failure.What == holders {
			o.Holders = append(slices.Clip(o.Holders), object.Holder{Command: "unknown", How: failure.Error})
		}
	}
	return o
}

// checkStep compares a step of the plan with the objects listed now. A listed object must be the one that was
// evaluated; one that is not listed must be gone.
func (p *podRelease) checkStep(ctx context.Context, report object.Report, step Step) {
	if p.over() {
		return
	}
	if now, listed := object.Find(p.rest, step.Kind, step.ID); listed {
		if !now.Identity.Equal(step.Object.Identity) {
			p.stopFor("%s %s is no longer the object that was inspected: %v instead of %v", step.Kind, step.ID,
				now.Identity.Values(), step.Object.Identity.Values())
		}
		return
	}
	gone, err := p.gone(ctx, step.Object)
	if p.interrupted(ctx) {
		return
	}
	if err != nil {
		p.couldNotTell("whether %s %s is gone: %v", step.Kind, step.ID, err)
	} else if !gone {
		p.couldNotTell("%s %s still exists, but %s", step.Kind, step.ID, verdictOf(report, step))
	}
}

// verdictOf describes the verdict on a step's object that the inspection does not list as the pod's.
func verdictOf(report object.Report, step Step) string {
	o, ok := object.Find(report.Objects, step.Kind, step.ID)
	if !ok {
		return "the inspection did not find it"
	}
	return fmt.Sprintf("it is no longer known to be the pod's: %s: %s", o.Verdict, o.Why)
}

// gone verifies whether an object is gone.
func (p *podRelease) gone(ctx context.Context, o object.Assessment) (bool, error) {
	action, ok := p.options.table.On(o.Kind)
	if !ok {
		return false, errors.New("there is no action for this kind to verify it")
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	return action.Verify(ctx, p.tools, o)
}
