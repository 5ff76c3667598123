package checks

import (
	"bufio"
	"os"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
)

// TestReleasedIsKept: released IDs and reasons are a contract: each still exists or is listed as removed.
func TestReleasedIsKept(t *testing.T) {
	now := map[string]bool{}
	for _, c := range Checks(DefaultSettings(), Deps{}) {
		for _, f := range c.Doc.Faults {
			now["check "+c.ID+" "+f.Reason] = true
		}
	}
	for _, r := range append(rules.Kernel(), rules.Daemons()...) {
		now["rule "+r.ID+" "+r.Reason] = true
	}
	file, err := os.Open("testdata/released.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	released := 0
	for lines := bufio.NewScanner(file); lines.Scan(); {
		line := lines.Text()
		if gone, isRemoved := strings.CutPrefix(line, "- "); isRemoved {
			if what, why, _ := strings.Cut(gone, ": "); now[what] || why == "" {
				t.Errorf("%q: it is there, or nobody says why it went", line)
			}
			continue
		}
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if released++; !now[line] {
			t.Errorf("%s was released and is gone", line)
		}
	}
	if released < 400 {
		t.Errorf("%d lines: the list is cut", released)
	}
}
