package repair

import (
	"fmt"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// activityOf returns the transition that a record of the journal stands for.
func activityOf(r Record, step *Step) finding.Activity {
	kind := finding.ActionFailed
	switch {
	case r.Event == release.Intent:
		kind = finding.ActionStarted
	case r.Result == Verified:
		kind = finding.ActionVerified
	case r.Result == Done:
		kind = finding.ActionDone
	case r.Result == release.Refused || r.Result == release.Stopped:
		kind = finding.ActionRefused
	}
	a := finding.NewActivity(kind, r.Check, r.Subject, r.At)
	if kind == finding.ActionFailed && r.Result != release.Interrupted {
		a.Severity = finding.Warning
	}
	text := fmt.Sprintf("%s: %s: %s: %s", r.Action, step.Does, r.Result, r.Why)
	a.Message = strings.TrimSuffix(strings.ReplaceAll(text, ": : ", ""), ": ")
	return a
}

// reportPlan reports newly planned or refused repairs: once for each occurrence of a finding, even across a restart of
// the agent, since the ID includes the time at which the finding was raised.
func (r *Runner) reportPlan(steps []Step) {
	var news []finding.Activity
	reported := map[string]finding.ActivityKind{}
	r.mu.Lock()
	for _, step := range steps {
		kind := finding.ActionPlanned
		if step.Refused {
			kind = finding.ActionRefused
		}
		key := string(step.Action) + " " + step.believed.ID
		reported[key] = kind
		if r.reported[key] == kind || step.Acts() {
			continue
		}
		a := finding.NewActivity(kind, step.Check, step.Subject, step.believed.Raised)
		a.Message = strings.ReplaceAll(fmt.Sprintf("%s: %s: %s", step.Action, step.Does, step.Blocked), ": : ", ": ")
		news = append(news, a)
	}
	r.reported = reported
	r.mu.Unlock()
	if len(news) > 0 {
		r.options.Report(news)
	}
}
