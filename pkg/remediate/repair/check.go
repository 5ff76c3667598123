package repair

import (
	"fmt"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// Reasons of the check of repairs.
const (
	reasonStopped = "RepairsStopped"
	reasonNoHelp  = "RepairDidNotHelp"
)

// Findings returns the findings about repairs themselves: repairs have stopped or are held, or a fault needs a person.
func (r *Runner) Findings() []finding.Finding {
	r.readHistory()
	now := r.options.Host.Clock()
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []finding.Finding
	why := stopped(r.history, r.options.Settings, now)
	if why == "" && r.trouble != "" {
		why = r.trouble + "; they go on once an administrator makes the journal readable"
	}
	if why != "" {
		found = append(found, finding.Finding{Subject: finding.Subject{Kind: "agent", Name: "repairs"},
			Severity: finding.Warning, Reason: reasonStopped, SuggestedAction: finding.SuggestHuman,
			Message: "repairs are stopped on this node: " + why})
	}
	for _, step := range r.steps {
		if why := step.undone(r.history, now); why != "" && step.Mode == release.On {
			found = append(found, noHelp(step.believed, step.Action, strings.TrimPrefix(why, needsHelp)))
		}
	}
	found = append(found, r.heldFindings(now)...)
	for _, b := range r.state.Raised() {
		last, ok := r.lastOf(b)
		if !ok || !last.failed() {
			continue
		}
		found = append(found, noHelp(b, last.Action, fmt.Sprintf("%s was done, and %s", last.Action, last.why)))
	}
	return found
}

func noHelp(b finding.Believed, action Name, why string) finding.Finding {
	return finding.Finding{
		Subject:  finding.Subject{Kind: "repair", Name: string(action) + " " + b.Subject.Name},
		Severity: finding.Warning, Reason: reasonNoHelp, SuggestedAction: finding.SuggestHuman,
		Message: fmt.Sprintf("%s: %s: this needs a person", b.Message, why),
		Facts:   map[string]string{"check": b.Check, "action": string(action)},
	}
}

// lastOf returns the last ended repair of one occurrence of a finding.
func (r *Runner) lastOf(b finding.Believed) (last attempt, ok bool) {
	for _, a := range r.history {
		if a.Finding == b.ID && a.Check == b.Check && a.result != "" && a.result != release.Interrupted {
			last, ok = a, true
		}
	}
	return last, ok
}
