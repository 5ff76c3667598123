package inspect

import (
	"log/slog"
	"maps"
	"slices"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

const (
	living      = inspecttest.Living
	dead        = inspecttest.Dead
	other       = inspecttest.Other
	sandbox     = inspecttest.Sandbox
	deadSandbox = inspecttest.DeadSandbox
	newSandbox  = inspecttest.NewSandbox
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

// inspector returns one with the default settings, of the kinds that the agent releases without an opt-in. The tests of
// pkg/inspect/kinds have the others.
func (n *node) inspector(change ...func(*object.Settings)) *Inspector {
	s := inspecttest.Settings()
	for _, f := range change {
		f(&s)
	}
	i := New(n.Host, s, slog.New(slog.DiscardHandler))
	i.specs = slices.DeleteFunc(i.specs, func(s kinds.Spec) bool { return s.ReportOnly != "" || s.OptIn })
	return i
}

// verdicts counts the verdicts of a report by kind.
func verdicts(report object.Report) map[object.Kind]map[object.Verdict]int {
	counts := make(map[object.Kind]map[object.Verdict]int)
	for _, o := range report.Objects {
		if counts[o.Kind] == nil {
			counts[o.Kind] = make(map[object.Verdict]int)
		}
		counts[o.Kind][o.Verdict]++
	}
	return counts
}

// ofPod returns the verdicts on the objects of one pod.
func ofPod(report object.Report, uid string) []object.Verdict {
	found := make(map[object.Verdict]bool)
	for _, o := range report.Objects {
		if o.Pod.UID == uid {
			found[o.Verdict] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}
