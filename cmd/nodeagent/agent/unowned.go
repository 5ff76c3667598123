package agent

import (
	"fmt"

	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// unownedFault is the fault that the check "leftovers" reports besides objects of deleted pods.
var unownedFault = detect.Fault{
	Reason: "UnownedObjects", Severity: finding.Info,
	When: "objects of a kind that kubelet and the runtime create have existed for many minutes, and no source names their pod",
}

// unownedFindings returns one finding for all objects that cannot be attributed to a pod. They are never released,
// because their owner cannot be proven.
func unownedFindings(report object.Report, node string) []finding.Finding {
	var names []string
	for _, o := range report.Objects {
		if o.Verdict == object.Unowned {
			names = append(names, fmt.Sprintf("%s %s", o.Kind, o.ID))
		}
	}
	if len(names) == 0 {
		return nil
	}
	return []finding.Finding{{
		Subject: finding.Subject{Kind: "node", Name: node}, Severity: unownedFault.Severity,
		Reason: unownedFault.Reason,
		Message: fmt.Sprintf("no source names the pod of %d objects; the agent never releases them by itself: %s",
			len(names), finding.JoinFirst(names, 3)),
	}}
}
