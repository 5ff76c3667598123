package kernel

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// examples are the lines beside a rule, testdata/rules/<id>.txt: under "match:" as "subject | line" or "node | line", under
// "recovery:" and "no-match:" the line alone.
type examples struct {
	match    []example
	recovery []string
	noMatch  []string
}

type example struct{ subject, line string }

func readExamples(t testing.TB, id string) examples {
	t.Helper()
	file, err := os.Open(filepath.Join("testdata", "rules", id+".txt"))
	if err != nil {
		t.Fatalf("every rule has its example lines: %v", err)
	}
	defer file.Close()
	var e examples
	section := ""
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		line := scanner.Text()
		switch {
		case line == "match:" || line == "recovery:" || line == "no-match:":
			section = line
		case section == "match:":
			subject, text, ok := strings.Cut(line, " | ")
			if !ok {
				t.Fatalf("%s: %q names no subject", id, line)
			}
			e.match = append(e.match, example{subject, text})
		case section == "recovery:":
			e.recovery = append(e.recovery, line)
		case section == "no-match:":
			e.noMatch = append(e.noMatch, line)
		default:
			t.Fatalf("%s: %q is in no section", id, line)
		}
	}
	return e
}

func subjectText(s finding.Subject) string {
	if s.Name == "" {
		return s.Kind
	}
	return s.Kind + "/" + s.Name
}
