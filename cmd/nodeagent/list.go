package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// printList lists the checks for people.
func printList(w io.Writer, checks []detect.Check) error {
	var b strings.Builder
	for _, c := range checks {
		fmt.Fprintf(&b, "%-22s %-11s %s\n", c.ID, c.Domain, c.Summary)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// checksPage is docs/checks.md.
func checksPage(checks []detect.Check) string {
	var b strings.Builder
	b.WriteString("# Checks\n\nGenerated from the code by `go test ./cmd/nodeagent -run Docs -update`.\n")
	for _, c := range checks {
		fmt.Fprintf(&b, "\n## %s\n\n%s: %s.\n\n", c.ID, c.Domain, c.Summary)
		fmt.Fprintf(&b, "* looks every %s, at most %s long%s\n", c.Every, c.Deadline, wakesOf(c))
		fmt.Fprintf(&b, "* believed %s; cleared %s\n", hold(c.Policy.Raise), hold(c.Policy.Clear))
		if c.Condition.Type != "" {
			fmt.Fprintf(&b, "* node condition `%s` (True is bad), or `%s` (True is good)\n", c.Condition.Type, c.Condition.ReadyType)
		}
		fmt.Fprintf(&b, "* next: %s\n", c.Advice)
	}
	return b.String()
}

func wakesOf(c detect.Check) string {
	var names []string
	for _, w := range c.Wakes {
		if name := string(w.Source); !strings.Contains(strings.Join(names, ", "), name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "; at once when woken by " + strings.Join(names, ", ")
}

func hold(h finding.Hold) string {
	if h.Looks <= 1 && h.For == 0 {
		return "at the first look"
	}
	return fmt.Sprintf("after %d looks over %s", max(h.Looks, 1), h.For)
}
