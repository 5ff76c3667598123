// Package optout decides by the labels and annotations of a pod whether its objects may be released. It is pure.
package optout

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// Annotation on a pod keeps all its objects from being released. Any value counts: "Never" is no "yes".
const Annotation = "nodeagent.github.io/release"

// By is the prefix of the reason given by the annotation.
const By = "its annotation " + Annotation

// Why returns why a pod with these labels and annotations opts out of releases, or "". Selectors are of labels; an
// invalid one selects every pod.
func Why(selectors []string, ofPod, annotations map[string]string) string {
	if value, ok := annotations[Annotation]; ok {
		return fmt.Sprintf("%s is %q", By, value[:min(len(value), 40)])
	}
	for _, text := range selectors {
		if selector, err := labels.Parse(text); err != nil || selector.Matches(labels.Set(ofPod)) {
			return fmt.Sprintf("its labels match %q, which is opted out", text)
		}
	}
	return ""
}

const prefix = "opt-out/" // no kind of object has such keys

// Key is the key in the history of a pod's opt-out.
func Key(uid string) string { return prefix + uid }

// UIDOf returns the pod of a key.
func UIDOf(key string) (uid string, ok bool) { return strings.CutPrefix(key, prefix) }
