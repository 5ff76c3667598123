package listers

import (
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
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

func settings() inspect.Settings {
	s := inspect.DefaultSettings()
	s.HostNamespaces = true
	return s
}

// inspector returns one with the default settings.
func (n *node) inspector() *inspect.Inspector {
	return inspect.New(n.Host, settings(), slog.New(slog.DiscardHandler)).Listing(All())
}

// ripen makes enough passes for unknown objects to be leftovers in the last one.
func (n *node) ripen(t *testing.T, history inspect.History, i *inspect.Inspector) inspect.Report {
	t.Helper()
	var report inspect.Report
	for range 4 {
		report, history = i.Pass(t.Context(), history)
		n.After(settings().Grace)
	}
	return report
}

// passes makes this many passes, each a while after the last.
func passes(t *testing.T, n *node, i *inspect.Inspector, history inspect.History, times int,
	apart time.Duration) (inspect.Report, inspect.History) {
	t.Helper()
	var report inspect.Report
	for range times {
		n.After(apart)
		report, history = i.Pass(t.Context(), history)
		noErrors(t, report)
	}
	return report, history
}

func noErrors(t *testing.T, report inspect.Report) {
	t.Helper()
	for _, failure := range report.Errors {
		t.Errorf("%s: %s", failure.What, failure.Error)
	}
}

func whys(report inspect.Report, uid string) string {
	var b strings.Builder
	for _, o := range report.Objects {
		if o.Pod.UID == uid {
			b.WriteString(string(o.Kind) + " " + o.ID + ": " + string(o.Verdict) + ": " + o.Why + "\n")
		}
	}
	return b.String()
}

// verdicts counts the verdicts on objects of a kind.
func verdicts(report inspect.Report, kind inspect.Kind) map[inspect.Verdict]int {
	counts := make(map[inspect.Verdict]int)
	for _, o := range report.Objects {
		if o.Kind == kind {
			counts[o.Verdict]++
		}
	}
	return counts
}

// verdictsByName returns the verdicts on the objects of a kind, by the last part of their IDs.
func verdictsByName(report inspect.Report, kind inspect.Kind,
	name func(inspect.Assessment) string) map[string]inspect.Verdict {
	got := map[string]inspect.Verdict{}
	for _, o := range report.Objects {
		if o.Kind == kind {
			got[name(o)] = o.Verdict
		}
	}
	return got
}

// of returns the verdicts of a report on objects of a kind whose ID contains one of the given IDs, by the IDs' names.
func of(report inspect.Report, kind inspect.Kind, ids map[string]string) map[string]inspect.Verdict {
	found := map[string]inspect.Verdict{}
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
func one(t *testing.T, report inspect.Report, kind inspect.Kind, id string) inspect.Assessment {
	t.Helper()
	for _, o := range report.Objects {
		if o.Kind == kind && strings.Contains(o.ID, id) {
			return o
		}
	}
	t.Fatalf("no %s with %s", kind, id)
	return inspect.Assessment{}
}

func write(t *testing.T, name, data string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
}
