// Package rulestest holds example lines of the rules of the kernel's log.
package rulestest

import (
	"bufio"
	"embed"
	"io/fs"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

//go:embed testdata/rules
var files embed.FS

// IDs returns the IDs of the rules that have examples.
func IDs() (ids []string) {
	names, _ := fs.Glob(files, "testdata/rules/*.txt") // the pattern is valid
	for _, name := range names {
		ids = append(ids, strings.TrimSuffix(strings.TrimPrefix(name, "testdata/rules/"), ".txt"))
	}
	return ids
}

// Examples are the lines beside a rule, testdata/rules/<id>.txt: under "match:" as "subject | line" or "node | line",
// under "recovery:" and "no-match:" the line alone.
type Examples struct {
	Match    []Example
	Recovery []string
	NoMatch  []string
}

// Example is a line and its subject.
type Example struct{ Subject, Line string }

// ReadExamples returns the examples of a rule.
func ReadExamples(t testing.TB, id string) Examples {
	t.Helper()
	file, err := files.Open("testdata/rules/" + id + ".txt")
	if err != nil {
		t.Fatalf("every rule has its example lines: %v", err)
	}
	defer file.Close()
	var e Examples
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
			e.Match = append(e.Match, Example{subject, text})
		case section == "recovery:":
			e.Recovery = append(e.Recovery, line)
		case section == "no-match:":
			e.NoMatch = append(e.NoMatch, line)
		default:
			t.Fatalf("%s: %q is in no section", id, line)
		}
	}
	return e
}

// SubjectText formats a subject as in the examples.
func SubjectText(s finding.Subject) string {
	if s.Name == "" {
		return s.Kind
	}
	return s.Kind + "/" + s.Name
}
