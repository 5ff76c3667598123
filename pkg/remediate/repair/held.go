package repair

import (
	"errors"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate/fleet"
)

// heldFor is how long a gate that others have closed may hold a repair without a finding.
const heldFor = time.Hour

const reasonHeld = "RepairHeld"

// occurrence is one action for one occurrence of a fault.
type occurrence struct {
	action  Name
	finding string
}

func (s *Step) occurrence() occurrence { return occurrence{s.Action, s.believed.ID} }

// noteHeld notes since when gates hold the steps of a round. Another gate, or another round without one, begins anew.
func (r *Runner) noteHeld(steps []Step) {
	held := map[occurrence]finding.Timestamp{}
	for i := range steps {
		if step := &steps[i]; step.opens != "" {
			since, before := r.held[step.occurrence()]
			if !before {
				since = r.options.Host.Clock()
			}
			held[step.occurrence()] = since
		}
	}
	r.held = held
}

// heldFindings returns a finding for each repair that a gate has held for long, with the gate and who opens it.
func (r *Runner) heldFindings(now finding.Timestamp) (found []finding.Finding) {
	for i := range r.steps {
		step := &r.steps[i]
		since, held := r.held[step.occurrence()]
		if step.opens == "" || !held || now.Since(since) < heldFor {
			continue
		}
		found = append(found, finding.Finding{
			Subject:  finding.Subject{Kind: "repair", Name: step.title()},
			Severity: finding.Warning, Reason: reasonHeld, SuggestedAction: finding.SuggestHuman,
			Message: fmt.Sprintf("%s has been held for an hour: %s. It begins %s", step.title(), step.Blocked, step.opens),
			Facts:   map[string]string{"check": step.Check, "action": string(step.Action)},
		})
	}
	return found
}

// The texts of who opens a gate, and when.
const (
	opensSwitch = "once an administrator removes that file, or makes its folder readable"
	opensPause  = "once the annotation is removed, or the other software has finished; by itself if the apiserver did not answer"
	opensRight  = "once an administrator grants the right (docs/fleet-budget.md), or sets repair.fleetBudget to none"
)

// opensSlot returns who opens the fleet's budget after an error of Acquire.
func opensSlot(err error) string {
	switch {
	case errors.Is(err, fleet.ErrIdentity), errors.Is(err, fleet.ErrUnconfined):
		return opensRight
	case errors.Is(err, fleet.ErrPaused):
		return "once an administrator deletes that ConfigMap"
	case errors.Is(err, fleet.ErrStorm):
		return "by itself, once fewer nodes wait: they share a fault, which an administrator has to find"
	}
	return "by itself, once another node gives its slot back or the apiserver answers; a slot ends after 30 minutes at the latest"
}
