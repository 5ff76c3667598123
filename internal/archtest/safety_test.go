package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/remediate/repair"
)

// safetyRow is one rule of docs/safety.md, one threat of docs/security.md, or one promise of
// docs/event-center-how-it-works.md: | ID | … | tests |
var safetyRow = regexp.MustCompile(`^\| ([A-Z]\d+) \|`)

// reference is a test in the page's form: `TestName` (package).
var reference = regexp.MustCompile("`((?:Test|Fuzz)\\w+)` \\(([\\w/]+)\\)")

// metric is a metric in the page's form: `name` or `name{label="value"}`.
var metric = regexp.MustCompile("`([a-z_]+)[`{]")

// A rule is kept only if a test keeps it: every rule of docs/safety.md, every threat of docs/security.md and every
// promise of docs/event-center-how-it-works.md names at least one, and each test that it names is there.
func TestEveryRuleHasItsTest(t *testing.T) {
	var pages string
	for _, name := range []string{"safety", "security", "event-center-how-it-works"} {
		page, err := os.ReadFile("../../docs/" + name + ".md")
		if err != nil {
			t.Fatal(err)
		}
		pages += string(page)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(pages) {
		row := safetyRow.FindStringSubmatch(line)
		if row == nil {
			continue
		}
		if seen[row[1]] {
			t.Errorf("rule %s is given twice", row[1])
		}
		seen[row[1]] = true
		tests := reference.FindAllStringSubmatch(line, -1)
		if len(tests) == 0 {
			t.Errorf("rule %s names no test", row[1])
		}
		for _, test := range tests {
			if !hasTest(t, test[2], test[1]) {
				t.Errorf("rule %s: %s has no %s", row[1], test[2], test[1])
			}
		}
	}
	if len(seen) < 60 {
		t.Errorf("only %d rules", len(seen))
	}
}

// A bad day that nobody can see in the metrics is found by its victims: every one of docs/event-center-how-it-works.md names a metric
// that the center has, but for those of files that are made again by themselves.
func TestEveryBadDayHasItsMetric(t *testing.T) {
	page, err := os.ReadFile("../../docs/event-center-how-it-works.md")
	if err != nil {
		t.Fatal(err)
	}
	var code string
	for _, name := range []string{"api", "deliver"} {
		text, err := os.ReadFile("../../pkg/eventcenter/" + name + "/metrics.go")
		if err != nil {
			t.Fatal(err)
		}
		code += string(text)
	}
	_, table, _ := strings.Cut(string(page), "\n## Bad days\n")
	days := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(line, " | ")
		if safetyRow.FindString(line) == "" || cells[0] == "| B14" || cells[0] == "| B15" {
			continue
		}
		days++
		if len(cells) != 5 || cells[2] == "" {
			t.Errorf("%s: %d columns, or no answer", cells[0], len(cells))
			continue
		}
		names := metric.FindAllStringSubmatch(cells[3], -1)
		if len(names) == 0 {
			t.Errorf("%s names no metric: %q", cells[0], cells[3])
		}
		for _, name := range names {
			if !strings.Contains(code, strings.TrimPrefix(name[1], "subscription_")+`"`) {
				t.Errorf("%s: the center has no metric %s", cells[0], name[1])
			}
		}
	}
	if days < 30 {
		t.Errorf("only %d bad days", days)
	}
}

// Every repair is in the table of docs/remediation.md: with a test of a case in which it helps and of one in which it
// does not, or a note that this was not observed.
func TestEveryRepairIsInTheTable(t *testing.T) {
	page, err := os.ReadFile("../../docs/remediation.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, action := range repair.Actions() {
		_, row, found := strings.Cut(string(page), "\n| `"+string(action.Name)+"` | ")
		row, _, _ = strings.Cut(row, " |\n")
		cells := strings.Split(row, " | ")
		if !found || len(cells) != 3 {
			t.Errorf("%s has %d columns", action.Name, len(cells))
			continue
		}
		for _, cell := range cells[1:] {
			test := reference.FindStringSubmatch(cell)
			if test == nil && !strings.HasPrefix(cell, "not seen") || test != nil && !hasTest(t, test[2], test[1]) {
				t.Errorf("%s: %q names no test", action.Name, cell)
			}
		}
	}
}

// command is a command of CONTRIBUTING.md that runs a test.
var command = regexp.MustCompile(`(?m)^    .*(?:-run|-fuzz) ((?:Test|Fuzz)\w+) .*\./([\w/]+)`)

// The tests that CONTRIBUTING.md runs one by one exist.
func TestContributingNamesTests(t *testing.T) {
	page, err := os.ReadFile("../../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := command.FindAllStringSubmatch(string(page), -1)
	if len(commands) < 8 {
		t.Errorf("only %d commands", len(commands))
	}
	for _, c := range commands {
		if !hasTest(t, c[2], c[1]) {
			t.Errorf("%s has no %s", c[2], c[1])
		}
	}
}

// hasTest reports whether a package has a test of that name.
func hasTest(t *testing.T, pkg, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "\nfunc "+name+"(") {
			return true
		}
	}
	return false
}
