package agent

import (
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// gateOpensWithin is how long a gate may stay closed without a finding. Most gates open by themselves within this time.
const gateOpensWithin = time.Hour

// gateFault is the fault that the check "leftovers" reports about its own gates.
var gateFault = detect.Fault{
	Reason: "GateClosed", Severity: finding.Warning,
	When: "a gate of the inspection has been closed for an hour and blocks releases; the message says who can open it, and " +
		"when",
}

// gateFindings returns one finding for each gate closed for longer than gateOpensWithin.
func gateFindings(report object.Report) (findings []finding.Finding) {
	for _, g := range report.Gates {
		since := report.At.Since(g.Since)
		if g.Open || g.Since.IsZero() || since < gateOpensWithin {
			continue
		}
		findings = append(findings, finding.Finding{
			Subject: finding.Subject{Kind: "gate", Name: g.Name}, Severity: gateFault.Severity, Reason: gateFault.Reason,
			SuggestedAction: finding.SuggestHuman,
			Message: fmt.Sprintf("gate %s has been closed for an hour and blocks releases: %s. It opens %s",
				g.Name, g.Why, g.Opens),
		})
	}
	return findings
}
