package remediate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// confirm looks at the whole node again and asks all witnesses about the pod. When one knows it, or an object is
// another one now, the pod is left alone; when anything could not be looked at, or could not be judged, nobody can
// tell. That an object is not listed does not mean that it is gone: that is asked of the object itself.
func (p *podRelease) confirm(ctx context.Context) error {
	why := p.stop(ctx)
	if p.interrupted(ctx) {
		return errStop
	}
	if why != "" {
		return p.stopFor("%s", why)
	}
	asking, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	report, err := p.options.Confirm(asking, p.outcome.Pod.UID)
	if p.interrupted(ctx) {
		return errStop
	}
	if err != nil {
		return p.couldNotTell("the witnesses could not be asked again: %v", err)
	}
	if why := inspectionError(report); why != "" {
		return p.couldNotTell("not all could be looked at again: %s", why)
	}
	if why := closedGate(report); why != "" {
		return p.stopFor("%s", why)
	}
	if err := p.updateRest(report); err != nil {
		return err
	}
	return p.checkPlan(ctx, report)
}

// holders is what an inspection calls the search for who keeps an object busy.
const holders = "holders"

// inspectionError returns what an inspection could not look at. That it could not find all holders does not matter here: it says
// nothing of what is there and whose it is.
func inspectionError(report inspect.Report) string {
	for _, failure := range report.Errors {
		if failure.What != holders {
			return failure.What + ": " + failure.Error
		}
	}
	return ""
}

// updateRest notes what is left of the pod.
func (p *podRelease) updateRest(report inspect.Report) error {
	p.rest = nil
	for _, o := range report.Objects {
		if !p.belongsToPod(o.Object) {
			continue
		}
		if why := p.options.Settings.optedOut(cmp.Or(o.Pod.Namespace, p.outcome.Pod.Namespace)); why != "" {
			return p.stopFor("%s %s: %s", o.Kind, o.ID, why)
		}
		switch o.Verdict {
		case inspect.Leftover, inspect.Candidate:
			p.rest = append(p.rest, withUnknownHolders(o, report))
		case inspect.Live:
			return p.stopFor("%s %s is %s: %s", o.Kind, o.ID, o.Verdict, o.Why)
		case inspect.Foreign: // never touched; where it was planned, checkPlan finds it
		default:
			return p.couldNotTell("%s %s is %s: %s", o.Kind, o.ID, cmp.Or(o.Verdict, inspect.Unknown), o.Why)
		}
	}
	return nil
}

// belongsToPod reports whether an object belongs to this pod: by what it tells, or, where it tells no pod, by the pod's
// sandbox.
func (p *podRelease) belongsToPod(o inspect.Object) bool {
	if o.Pod.UID != "" || o.SandboxID == "" {
		return Group(o) == p.outcome.Group
	}
	return slices.ContainsFunc(p.steps, func(s Step) bool {
		return s.Object.SandboxID == o.SandboxID || s.Kind == inspect.Sandbox && s.ID == o.SandboxID
	})
}

// withUnknownHolders makes a holder of those that could not be looked for: whoever asks whether somebody uses an
// object must not take it for unused.
func withUnknownHolders(o inspect.Assessment, report inspect.Report) inspect.Assessment {
	for _, failure := range report.Errors {
		if failure.What == holders {
			o.Holders = append(slices.Clip(o.Holders), inspect.Holder{Command: "unknown", How: failure.Error})
		}
	}
	return o
}

// checkPlan holds what was planned against what is listed now. What is listed must be the very thing that was
// judged; what is not must be gone.
func (p *podRelease) checkPlan(ctx context.Context, report inspect.Report) error {
	for _, step := range p.steps {
		if now, listed := findObject(p.rest, step.Kind, step.ID); listed {
			if !sameIdentity(now.Identity, step.Object.Identity) {
				return p.stopFor("%s %s is no longer what was judged: %v instead of %v", step.Kind, step.ID,
					now.Identity, step.Object.Identity)
			}
			continue
		}
		gone, err := p.gone(ctx, step.Object)
		if p.interrupted(ctx) {
			return errStop
		}
		if err != nil {
			return p.couldNotTell("whether %s %s is gone: %v", step.Kind, step.ID, err)
		}
		if !gone {
			return p.couldNotTell("%s %s is still there, but %s", step.Kind, step.ID, verdictOf(report, step))
		}
	}
	return nil
}

// verdictOf words what an inspection says of a step's object that it does not list as the pod's.
func verdictOf(report inspect.Report, step Step) string {
	o, ok := findObject(report.Objects, step.Kind, step.ID)
	if !ok {
		return "the inspection did not find it"
	}
	return fmt.Sprintf("no longer known as the pod's: %s: %s", o.Verdict, o.Why)
}

// gone asks an object itself whether it is gone.
func (p *podRelease) gone(ctx context.Context, o inspect.Assessment) (bool, error) {
	action, ok := p.options.actions.on(o.Kind)
	if !ok {
		return false, errors.New("there is no action on this kind that could tell")
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	return action.Verify(ctx, p.tools, o)
}
