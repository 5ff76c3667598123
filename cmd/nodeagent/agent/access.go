package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// accessCheck reports each file or right that the agent lacks, with the checks that are blind without it: one finding
// for each lack instead of one for each check. believed returns the believed state of all checks.
func accessCheck(believed func() finding.State) detect.Check {
	return detect.Check{
		ID: "agent-access", Domain: "agent", Every: time.Minute, RunAfter: true,
		Summary: "the agent lacks a file or a right, and checks are blind without it",
		Advice:  "The message names the missing right. `nodeagent status` names the checks that cannot tell.",
		Doc: detect.Doc{
			Reads: []string{"the errors of all checks"},
			Why: "A check that may not read its sources can report neither a healthy node nor a fault: its node condition " +
				"becomes Unknown.",
			Faults: []detect.Fault{{Reason: "AccessMissing", Severity: finding.Warning,
				When: "for five minutes, credentials could not be read, or the apiserver or kubelet denied a right; one " +
					"finding for each lack, with all checks that it blinds"}},
			FalseAlarms: "Kubelet refuses every client while it cannot ask the apiserver to authenticate it. A check that " +
				"does not apply without the right is not blind.",
		},
		Policy: finding.Policy{Raise: finding.Hold{Runs: 2, For: finding.DefaultBlindAfter}},
		Run: func(context.Context, *host.Host) ([]finding.Finding, error) {
			return accessFindings(believed()), nil
		},
	}
}

func accessFindings(state finding.State) []finding.Finding {
	blind := map[finding.Access][]string{}
	for _, check := range state.Checks() {
		if lack := state[check].Access; lack != nil {
			blind[*lack] = append(blind[*lack], check)
		}
	}
	var findings []finding.Finding
	for _, lack := range slices.SortedFunc(maps.Keys(blind), func(a, b finding.Access) int {
		return strings.Compare(a.Lack+a.Grant, b.Lack+b.Grant)
	}) {
		checks := strings.Join(blind[lack], ", ")
		findings = append(findings, finding.Finding{
			Subject: finding.Subject{Kind: "access", Name: lack.Lack}, Severity: finding.Warning, Reason: "AccessMissing",
			Message: fmt.Sprintf("%s: %d checks cannot tell (%s); to grant it: %s", lack.Lack, len(blind[lack]), checks,
				lack.Grant),
			Facts: map[string]string{"checks": checks, "grant": lack.Grant},
		})
	}
	return findings
}
