package event

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
)

// Wording words the findings of a check like node-problem-detector: under the name of their source, and a fatal one as
// a change of its condition.
type Wording struct {
	Source    string
	Condition finding.Condition // none for a check without a condition
}

// apply returns n in this wording (node-problem-detector, pkg/util: GenerateConditionChangeEvent).
func (w Wording) apply(n note, u finding.Update) note {
	n.Source = report.Text(w.Source, maxReason)
	if w.Condition.Type == "" || u.Finding.Severity != finding.Fatal {
		return n
	}
	truth, reason, message := "True", u.Finding.Reason, u.Finding.Message
	n.Type = corev1.EventTypeWarning
	if u.Kind == finding.Cleared {
		truth, reason, message = "False", w.Condition.HealthyReason, w.Condition.HealthyMessage
		n.Type = corev1.EventTypeNormal
	}
	n.Reason = report.Reason(reason, maxReason)
	n.Message = report.Text(fmt.Sprintf("Node condition %s is now: %s, reason: %s, message: %q", w.Condition.Type,
		truth, reason, message), maxMessage)
	return n
}
