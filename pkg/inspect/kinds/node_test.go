package kinds_test

import (
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
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

func settings() object.Settings {
	s := object.DefaultSettings()
	s.HostNamespaces = true
	return s
}

// inspector returns one with the default settings.
func (n *node) inspector() *inspect.Inspector {
	return inspect.New(n.Host, settings(), slog.New(slog.DiscardHandler))
}

// ripen makes enough passes for unknown objects to be leftovers in the last one.
func (n *node) ripen(t *testing.T, history object.History, i *inspect.Inspector) object.Report {
	t.Helper()
	var report object.Report
	for range 4 {
		report, history = i.Pass(t.Context(), history)
		n.After(settings().Grace)
	}
	return report
}

// passes makes this many passes, each a while after the last.
func passes(t *testing.T, n *node, i *inspect.Inspector, history object.History, times int,
	apart time.Duration) (object.Report, object.History) {
	t.Helper()
	var report object.Report
	for range times {
		n.After(apart)
		report, history = i.Pass(t.Context(), history)
		inspecttest.NoErrors(t, report)
	}
	return report, history
}

// verdicts counts the verdicts on objects of a kind.
func verdicts(report object.Report, kind object.Kind) map[object.Verdict]int {
	counts := make(map[object.Verdict]int)
	for _, o := range report.Objects {
		if o.Kind == kind {
			counts[o.Verdict]++
		}
	}
	return counts
}

// verdictsByName returns the verdicts on the objects of a kind, by the last part of their IDs.
func verdictsByName(report object.Report, kind object.Kind,
	name func(object.Assessment) string) map[string]object.Verdict {
	got := map[string]object.Verdict{}
	for _, o := range report.Objects {
		if o.Kind == kind {
			got[name(o)] = o.Verdict
		}
	}
	return got
}

// of returns the verdicts of a report on objects of a kind whose ID contains one of the given IDs, by the IDs' names.
func of(report object.Report, kind object.Kind, ids map[string]string) map[string]object.Verdict {
	found := map[string]object.Verdict{}
	for _, o := range report.Objects {
		for name, id := range ids {
			if o.Kind == kind && strings.Contains(o.ID, id) {
				found[name] = o.Verdict
			}
		}
	}
	return found
}

// one returns the object of a kind whose ID contains id.
func one(t *testing.T, report object.Report, kind object.Kind, id string) object.Assessment {
	t.Helper()
	for _, o := range report.Objects {
		if o.Kind == kind && strings.Contains(o.ID, id) {
			return o
		}
	}
	t.Fatalf("no %s with %s", kind, id)
	return object.Assessment{}
}

func write(t *testing.T, name, data string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
}
