package agent

import (
	"slices"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checks"
	"github.com/nodeagent/nodeagent/pkg/remediate/repair"
)

// Every check and reason that an action answers exists: an action for a reason that no check reports never runs.
func TestRepairsAnswerFaults(t *testing.T) {
	all := checks.Checks(checks.DefaultSettings(), checks.Deps{})
	for _, action := range repair.Actions() {
		for _, answer := range action.Answers {
			at := slices.IndexFunc(all, func(c detect.Check) bool { return c.ID == answer.Check })
			if at < 0 {
				t.Errorf("%s answers %s: there is no such check", action.Name, answer.Check)
				continue
			}
			for _, reason := range answer.Reasons {
				if !slices.ContainsFunc(all[at].Doc.Faults, func(f detect.Fault) bool { return f.Reason == reason }) {
					t.Errorf("%s answers %s of %s: it has no such fault", action.Name, reason, answer.Check)
				}
			}
		}
	}
}
