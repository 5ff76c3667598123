package condition

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
)

// Vocabulary selects one of the two common conventions to name a condition.
type Vocabulary string

// The vocabularies. The zero value is Problem.
const (
	Problem Vocabulary = "problem" // node-problem-detector's: True is a fault
	Ready   Vocabulary = "ready"   // of kubelet's Ready and of NMA: False is a fault
)

// kind is one condition and its checks.
type kind struct {
	name   string
	ready  bool // True is good
	naming finding.Condition
	checks []string
}

// kinds sorts checks by their condition. If a check has no name in the wanted vocabulary, it uses the other one, with
// the polarity of that one.
func kinds(namings map[string]finding.Condition, v Vocabulary) []*kind {
	byName := map[string]*kind{}
	for _, check := range slices.Sorted(maps.Keys(namings)) {
		n := namings[check]
		name := v.Name(n)
		if name == "" {
			continue // this check has no condition
		}
		if byName[name] == nil {
			byName[name] = &kind{name: name, ready: name == n.ReadyType, naming: n}
		}
		byName[name].checks = append(byName[name].checks, check)
	}
	return slices.SortedFunc(maps.Values(byName), func(a, b *kind) int { return cmp.Compare(a.name, b.name) })
}

// Name returns the condition name of n; empty if n has none.
func (v Vocabulary) Name(n finding.Condition) string {
	if v == Ready {
		return cmp.Or(n.ReadyType, n.Type)
	}
	return cmp.Or(n.Type, n.ReadyType)
}

// evaluate returns the verdict of k.
func (k *kind) evaluate(state finding.State) report.Verdict {
	checks := make([]*finding.CheckState, 0, len(k.checks))
	for _, check := range k.checks {
		checks = append(checks, state[check])
	}
	return report.Evaluate(k.naming, checks...)
}

// bad is the status of the condition if there is a fault, good if there is none.
func (k *kind) bad() corev1.ConditionStatus  { return truthOf(!k.ready) }
func (k *kind) good() corev1.ConditionStatus { return truthOf(k.ready) }

func truthOf(is bool) corev1.ConditionStatus {
	if is {
		return corev1.ConditionTrue
	}
	return corev1.ConditionFalse
}

// truth returns the condition status of a status; empty if it is not shown.
func (k *kind) truth(s finding.Status) corev1.ConditionStatus {
	switch s {
	case finding.StatusFaulty:
		return k.bad()
	case finding.StatusHealthy:
		return k.good()
	case finding.StatusNotApplicable:
		return ""
	}
	return corev1.ConditionUnknown
}
