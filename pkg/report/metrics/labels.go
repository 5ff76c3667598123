package metrics

import (
	"slices"
	"sync"

	"github.com/nodeagent/nodeagent/pkg/report"
)

const (
	// maxLabel bounds a label, in bytes.
	maxLabel = 128
	// maxReasons bounds how many different reasons are counted: users' plugins and rules create them.
	maxReasons = 500
	// otherReasons stands for all reasons beyond that.
	otherReasons = "OtherReasons"
)

// label makes s a valid label value.
func label(s string) string { return report.Text(s, maxLabel) }

// vocabulary bounds the number of different words of a label.
type vocabulary struct {
	limit int

	mu    sync.Mutex // guards words
	words map[string]bool
}

// bound returns word, or the replacement for all others if there are too many.
func (v *vocabulary) bound(word string) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.words[word] {
		return word
	}
	if len(v.words) >= v.limit {
		return otherReasons
	}
	v.words[word] = true
	return word
}

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
