package kernellog

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/kmsg"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules/rulestest"
)

// shipped has the shipped rules, compiled once: a matcher does not change.
var shipped = sync.OnceValues(func() (*Matcher, error) { return NewMatcher(rules.Kernel()) })

func newTable(t testing.TB) *Matcher {
	t.Helper()
	m, err := shipped()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestRulesMatchTheirLines(t *testing.T) {
	m := newTable(t)
	for _, rule := range rules.Kernel() {
		t.Run(rule.ID, func(t *testing.T) {
			e := rulestest.ReadExamples(t, rule.ID)
			if len(e.Match) < 2 || len(e.NoMatch) < 2 {
				t.Errorf("%d lines to match and %d not to match: at least 2 of each are needed", len(e.Match),
					len(e.NoMatch))
			}
			for _, want := range e.Match {
				hit, ok := m.Match([]byte(want.Line))
				if !ok {
					t.Errorf("not recognised: %s", want.Line)
					continue
				}
				got := rulestest.Example{Subject: hit.Rule.ID + " " + rulestest.SubjectText(hit.Subject),
					Line: want.Line}
				if diff := cmp.Diff(rulestest.Example{Subject: rule.ID + " " + want.Subject, Line: want.Line}, got,
					cmp.AllowUnexported(rulestest.Example{})); diff != "" || hit.Recovered {
					t.Errorf("recovered %v, (-want +got):\n%s", hit.Recovered, diff)
				}
			}
			for _, line := range e.NoMatch {
				if hit, ok := m.Match([]byte(line)); ok && !hit.Recovered && hit.Rule.ID == rule.ID {
					t.Errorf("must not match: %s", line)
				}
			}
			if (rule.Recovery != "") != (len(e.Recovery) > 0) {
				t.Errorf("recovery pattern %q, but %d recovery lines", rule.Recovery, len(e.Recovery))
			}
			for _, line := range e.Recovery {
				if hit, ok := m.Match([]byte(line)); !ok || !hit.Recovered || hit.Rule.ID != rule.ID {
					t.Errorf("not recognised as recovery: %s (%+v)", line, hit)
				}
			}
		})
	}
}

// TestEveryPatternIsUsed: a pattern, literal or alternative that no example line needs may be wrong without any test
// failing.
func TestEveryPatternIsUsed(t *testing.T) {
	m := newTable(t)
	for i, rule := range rules.Kernel() {
		e := rulestest.ReadExamples(t, rule.ID)
		for j, p := range m.Rules[i].Patterns {
			used := false
			for _, line := range e.Match {
				used = used || p.Regexp().MatchString(line.Line)
			}
			if !used {
				t.Errorf("%s: no line matches pattern %d: %s", rule.ID, j, rule.Patterns[j])
			}
		}
	}
}

// TestEveryRuleAdvises: each rule has advice for the next step, with a command, different from that of other rules.
func TestEveryRuleAdvises(t *testing.T) {
	const longest = 320 // people read it in a terminal, beside the message
	said := map[string]string{}
	for _, rule := range append(rules.Kernel(), rules.Daemons()...) {
		commands := strings.Count(rule.Advice, "`")
		if commands == 0 || commands%2 != 0 || len(rule.Advice) > longest || strings.TrimRight(rule.Advice, ".?") == rule.Advice {
			t.Errorf("%s: advice must name a command in backquotes, in at most %d bytes, and end with a stop: %q",
				rule.ID, longest, rule.Advice)
		}
		if other := said[rule.Advice]; other != "" {
			t.Errorf("%s and %s give the same advice", rule.ID, other)
		}
		said[rule.Advice] = rule.ID
	}
}

// TestFindingAdvises: the finding has its rule's advice; of several rules, that of the one whose reason it has.
func TestFindingAdvises(t *testing.T) {
	l := NewLog(newTable(t))
	l.Observe(kmsg.KernelRecord{Sequence: 1, Up: time.Minute, Text: "NFS: filer1: lost 2 locks"})
	l.Observe(kmsg.KernelRecord{Sequence: 2, Up: 2 * time.Minute, Text: "nfs: server filer1 not responding, still trying"})
	findings := l.Findings(3*time.Minute, nil)
	if len(findings) != 1 || findings[0].Reason != "NFSServerNotResponding" ||
		!strings.Contains(findings[0].Facts["advice"], "nfsstat -m") {
		t.Errorf("%+v", findings)
	}
}

// TestExamplesBelongToRules: otherwise the file of a renamed rule would not be tested.
func TestExamplesBelongToRules(t *testing.T) {
	ids := map[string]bool{}
	for _, rule := range rules.Kernel() {
		ids[rule.ID] = true
	}
	for _, id := range rulestest.IDs() {
		if !ids[id] {
			t.Errorf("%s.txt belongs to no rule", id)
		}
	}
}
