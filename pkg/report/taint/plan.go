package taint

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// wish is the taint that the believed state asks for.
type wish struct {
	taint   *corev1.Taint // nil: no fault asks for one
	checks  []string      // checks whose faults ask for it, sorted
	unknown []string      // unknown checks, sorted
}

// wishOf returns the wish of a state. It is pure. A fault of a check in prefer only makes the node less attractive: the
// pod that would end the fault must still be schedulable.
func wishOf(state finding.State, key string, prefer []string) wish {
	var w wish
	var first finding.Believed
	effect := corev1.TaintEffectPreferNoSchedule
	for _, name := range state.Checks() {
		check := state[name]
		if check.Status == finding.StatusUnknown {
			w.unknown = append(w.unknown, name)
		}
		if check.Status != finding.StatusFaulty {
			continue
		}
		w.checks = append(w.checks, name)
		strong := !slices.Contains(prefer, name)
		for _, b := range check.Raised() {
			if b.Severity != finding.Fatal {
				continue
			}
			if older := b.Raised.Wall.Before(first.Raised.Wall); first.Reason == "" || older {
				first = b
			}
		}
		if strong {
			effect = corev1.TaintEffectNoSchedule
		}
	}
	if len(w.checks) > 0 {
		w.taint = &corev1.Taint{Key: key, Value: labelValue(cmp.Or(first.Reason, w.checks[0])), Effect: effect}
	}
	return w
}

// maxValue bounds the value of a taint, in bytes (Kubernetes: a label's value).
const maxValue = 63

// labelValue converts a reason to the form of a label value: letters, digits, "-", "_" and ".", starting and ending
// with a letter or digit.
func labelValue(reason string) string {
	safe := strings.Map(func(r rune) rune {
		if r < 0x80 && strings.ContainsRune("-_.", r) || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' ||
			r >= 'A' && r <= 'Z' {
			return r
		}
		return '-'
	}, reason)
	return strings.Trim(safe[:min(len(safe), maxValue)], "-_.")
}

// merge returns the taints of a Node with the wanted one (nil: without ours), in their order, and whether they changed.
// It changes only entries of our key.
func merge(taints []corev1.Taint, key string, wanted *corev1.Taint) ([]corev1.Taint, bool) {
	var merged []corev1.Taint
	placed := false
	for _, t := range taints {
		switch {
		case t.Key != key:
			merged = append(merged, t)
		case wanted != nil && !placed:
			mine := *wanted
			if t.Value == mine.Value && t.Effect == mine.Effect {
				mine = t
			}
			merged, placed = append(merged, mine), true
		}
	}
	if wanted != nil && !placed {
		merged = append(merged, *wanted)
	}
	return merged, !slices.EqualFunc(taints, merged, func(a, b corev1.Taint) bool {
		return a.Key == b.Key && a.Value == b.Value && a.Effect == b.Effect
	})
}

// find returns the entry of our key; nil if there is none.
func find(taints []corev1.Taint, key string) *corev1.Taint {
	if i := slices.IndexFunc(taints, func(t corev1.Taint) bool { return t.Key == key }); i >= 0 {
		return &taints[i]
	}
	return nil
}

// encode returns the JSON merge patch that replaces the taints of a Node, unless the Node has changed since it was
// read: for the apiserver the list is one value.
func encode(resourceVersion string, taints []corev1.Taint) ([]byte, error) {
	if resourceVersion == "" {
		return nil, fmt.Errorf("the Node has no resourceVersion: its taints cannot be changed safely")
	}
	if taints == nil {
		taints = []corev1.Taint{}
	}
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": resourceVersion},
		"spec":     map[string]any{"taints": taints},
	})
}

// The marks of others that take a node out of service or replace it. While the Node has one, the reporter changes
// nothing.
var (
	ownersTaints = []string{
		corev1.TaintNodeOutOfService,     // an administrator: the node is shut down (KEP-2268)
		"ToBeDeletedByClusterAutoscaler", // Cluster Autoscaler drains it
		"karpenter.sh/disrupted",         // Karpenter drains it
		"karpenter.sh/disruption",        // the same before its version 1
		"medik8s.io/remediation",         // medik8s: a remediator works on it
	}
	ownersAnnotations = []string{"weave.works/kured-reboot-in-progress", "nodeagent.github.io/pause"}
)

const elsewhere = "another actor works on this node: "

// Owner returns the mark by which another controller works on the Node, or "".
func Owner(node *corev1.Node) string {
	for _, t := range node.Spec.Taints {
		if slices.Contains(ownersTaints, t.Key) {
			return elsewhere + "taint " + t.Key
		}
	}
	for _, name := range ownersAnnotations {
		if _, ok := node.Annotations[name]; ok {
			return elsewhere + "annotation " + name
		}
	}
	if node.DeletionTimestamp != nil {
		return elsewhere + "the Node is being deleted"
	}
	return ""
}
