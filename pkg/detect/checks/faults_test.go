package checks

import (
	"os"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
)

// Every fault that docs/faults.md claims to find exists, every omission has a reason, and names are unique.
func TestFaults(t *testing.T) {
	exists := map[string]bool{}
	for _, c := range Checks(DefaultSettings(), Deps{}) {
		exists[c.ID] = true
	}
	for _, r := range rules.Kernel() {
		exists[r.ID] = true
	}
	for _, r := range rules.Daemons() {
		if exists[r.ID] {
			t.Errorf("%q is the name of a rule for daemons and of another rule or a check", r.ID)
		}
		exists[r.ID] = true
		if r.ConfirmedBy != "" && !exists[r.ConfirmedBy] {
			t.Errorf("the rule for daemons %s names %q, which is no check", r.ID, r.ConfirmedBy)
		}
	}
	page, err := os.ReadFile("../../../docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	known, left, _ := strings.Cut(string(page), "## Left out")
	for line := range strings.Lines(known) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		if len(cells) != 2 || cells[0] == "fault" {
			continue
		}
		for id := range strings.SplitSeq(cells[1], ", ") {
			if !exists[id] {
				t.Errorf("%q is found by %q, which is neither a check nor a rule", cells[0], id)
			}
		}
	}
	if rows := strings.Count(known, "\n|"); rows < 200 {
		t.Errorf("%d known faults", rows)
	}
	for line := range strings.Lines(left) {
		if strings.HasPrefix(line, "|") && len(strings.Split(strings.Trim(line, "| \n"), " | ")) != 2 &&
			!strings.HasPrefix(line, "|-") {
			t.Errorf("left out without a reason: %s", line)
		}
	}
}
