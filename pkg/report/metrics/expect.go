package metrics

import (
	"slices"

	"github.com/nodeagent/nodeagent/pkg/report"
)

// maxExpected bounds the reasons of one condition shown as 0.
const maxExpected = 100

// Expect makes possible reasons show as 0 from the start, as node-problem-detector does: an alert on a rate or on
// absence then works before the first problem. Reasons are by condition type; those under "" belong to no condition.
// Call it before the first Update.
func (m *Metrics) Expect(reasons map[string][]string) {
	m.state.expected = map[string][]string{}
	for condition, all := range reasons {
		for _, reason := range all {
			reason = report.Reason(reason, maxLabel)
			m.problems.WithLabelValues(m.reasons.bound(reason))
			if condition != "" && len(m.state.expected[condition]) < maxExpected &&
				!slices.Contains(m.state.expected[condition], reason) {
				m.state.expected[condition] = append(m.state.expected[condition], reason)
			}
		}
	}
}

// Happened counts problems that are not reported individually, because too many came at once.
func (m *Metrics) Happened(reason string, n int) {
	m.problems.WithLabelValues(m.reasons.bound(report.Reason(reason, maxLabel))).Add(float64(max(n, 0)))
}
