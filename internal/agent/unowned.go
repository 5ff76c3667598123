package agent

import (
	"fmt"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// unownedFault is what the check "leftovers" says besides of pods that are gone.
var unownedFault = detect.Fault{
	Reason: "UnownedObjects", Severity: finding.Info,
	When: "objects of a form that the runtime gives have been there for many minutes, and nothing names the pod they " +
		"were made for",
}

// unownedFindings tells once of all that nothing ties to a pod. It is never released: nobody can prove whose it is.
func unownedFindings(report inspect.Report, node string) []finding.Finding {
	const most = 3
	var names []string
	n := 0
	for _, o := range report.Objects {
		if o.Verdict != inspect.Unowned {
			continue
		}
		if n++; n <= most {
			names = append(names, fmt.Sprintf("%s %s", o.Kind, o.ID))
		}
	}
	if n == 0 {
		return nil
	}
	text := strings.Join(names, ", ")
	if n > most {
		text += fmt.Sprintf(" and %d more", n-most)
	}
	return []finding.Finding{{
		Subject: finding.Subject{Kind: "node", Name: node}, Severity: unownedFault.Severity,
		Reason: unownedFault.Reason,
		Message: fmt.Sprintf(
			"%d objects have nothing that names the pod they were made for, and are left to a person: %s", n, text),
	}}
}
