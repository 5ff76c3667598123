package event

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
)

// worded returns n in a wording (node-problem-detector, pkg/util: GenerateConditionChangeEvent).
func worded(n note, w finding.Wording, u finding.Update) note {
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
