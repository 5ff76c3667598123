package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/detect"
)

// printList lists the checks for people.
func printList(w io.Writer, checks []detect.Check) error {
	var b strings.Builder
	for _, domain := range groupedBy(checks, func(c detect.Check) string { return c.Domain }) {
		fmt.Fprintf(&b, "%s\n", strings.ToUpper(domain[0].Domain))
		for _, c := range domain {
			fmt.Fprintf(&b, "  %-24s %s\n", c.ID, c.Summary)
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "%d checks; nodeagent explain CHECK explains its sources, thresholds and false alarms\n",
		len(checks))
	_, err := io.WriteString(w, b.String())
	return err
}
