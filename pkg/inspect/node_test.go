package inspect

import (
	"log/slog"
	"maps"
	"slices"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
)

// node is a node with real objects.
type node struct {
	*inspecttest.Node

	t testing.TB
}

func newNode(t testing.TB) *node {
	t.Helper()
	return &node{inspecttest.NewNode(t), t}
}

// inspector returns one with the default settings.
func (n *node) inspector(change ...func(*Settings)) *Inspector {
	s := settings()
	for _, f := range change {
		f(&s)
	}
	return New(n.Host, s, slog.New(slog.DiscardHandler))
}

// verdicts counts the verdicts of a report by kind.
func verdicts(report Report) map[Kind]map[Verdict]int {
	counts := make(map[Kind]map[Verdict]int)
	for _, o := range report.Objects {
		if counts[o.Kind] == nil {
			counts[o.Kind] = make(map[Verdict]int)
		}
		counts[o.Kind][o.Verdict]++
	}
	return counts
}

// ofPod returns the verdicts on the objects of one pod.
func ofPod(report Report, uid string) []Verdict {
	found := make(map[Verdict]bool)
	for _, o := range report.Objects {
		if o.Pod.UID == uid {
			found[o.Verdict] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}
