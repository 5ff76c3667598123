package kernellog

import (
	"os"
	"strings"
	"testing"
)

// TestLinesOfReports: each line of a public report is recognised by its rule, and unrecognised lines are the exception.
func TestLinesOfReports(t *testing.T) {
	m := newTable(t)
	data, err := os.ReadFile("testdata/reports.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines, missed := 0, 0
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "#") {
			continue
		}
		want, text, ok := strings.Cut(line, " | ")
		if !ok {
			t.Fatalf("%q names no rule", line)
		}
		lines++
		got := "?"
		if hit, ok := m.Match([]byte(text)); ok {
			got = hit.Rule.ID
		}
		if got != want {
			t.Errorf("%s, want %s: %s", got, want, text)
		}
		if got == "?" {
			missed++
		}
	}
	if missed*100 > lines*8 {
		t.Errorf("%d of %d lines are not recognised", missed, lines)
	}
}
