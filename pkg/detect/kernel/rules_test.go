package kernel

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func newTable(t testing.TB) *Matcher {
	t.Helper()
	m, err := NewMatcher(Rules())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestRulesMatchTheirLines(t *testing.T) {
	m := newTable(t)
	for _, rule := range Rules() {
		t.Run(rule.ID, func(t *testing.T) {
			e := readExamples(t, rule.ID)
			if len(e.match) < 2 || len(e.noMatch) < 2 {
				t.Errorf("%d lines to match and %d not to match: at least 2 of each are needed", len(e.match), len(e.noMatch))
			}
			for _, want := range e.match {
				hit, ok := m.Match([]byte(want.line))
				if !ok {
					t.Errorf("not recognised: %s", want.line)
					continue
				}
				got := example{hit.Rule.ID + " " + subjectText(hit.Subject), want.line}
				if diff := cmp.Diff(example{rule.ID + " " + want.subject, want.line}, got, cmp.AllowUnexported(example{})); diff != "" || hit.Recovered {
					t.Errorf("recovered %v, (-want +got):\n%s", hit.Recovered, diff)
				}
			}
			for _, line := range e.noMatch {
				if hit, ok := m.Match([]byte(line)); ok && !hit.Recovered && hit.Rule.ID == rule.ID {
					t.Errorf("must not match: %s", line)
				}
			}
			if (rule.Recovery.Pattern != "") != (len(e.recovery) > 0) {
				t.Errorf("recovery pattern %q, but %d recovery lines", rule.Recovery.Pattern, len(e.recovery))
			}
			for _, line := range e.recovery {
				if hit, ok := m.Match([]byte(line)); !ok || !hit.Recovered || hit.Rule.ID != rule.ID {
					t.Errorf("not recognised as recovery: %s (%+v)", line, hit)
				}
			}
		})
	}
}

// TestEveryPatternIsUsed: a pattern, literal or alternative that no example line needs may be wrong without anyone noticing.
func TestEveryPatternIsUsed(t *testing.T) {
	m := newTable(t)
	for i, rule := range Rules() {
		e := readExamples(t, rule.ID)
		for j, p := range m.rules[i].patterns {
			used := false
			for _, line := range e.match {
				used = used || p.regexp().MatchString(line.line)
			}
			if !used {
				t.Errorf("%s: no line matches pattern %d: %s", rule.ID, j, rule.Patterns[j])
			}
		}
	}
}

// TestExamplesBelongToRules: a file whose rule was renamed would otherwise test nothing.
func TestExamplesBelongToRules(t *testing.T) {
	ids := map[string]bool{}
	for _, rule := range Rules() {
		ids[rule.ID] = true
	}
	files, err := os.ReadDir(filepath.Join("testdata", "rules"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if id := strings.TrimSuffix(file.Name(), ".txt"); !ids[id] {
			t.Errorf("%s belongs to no rule", file.Name())
		}
	}
}
