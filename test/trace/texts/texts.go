// Package texts has texts as the components of a cluster write them, with the reason that each shows.
package texts

import (
	_ "embed"
	"strings"
	"testing"
)

// examples has a line for each text, with tabs between its fields: reason, from, source, text.
//
//go:embed examples.tsv
var examples string

// Example is a text written by a component.
type Example struct {
	Reason string
	From   string // reason of the Event, of waiting, or of the pod
	Source string // component, version, file
	Text   string
}

// All returns the examples, in the order of the table of texts.
func All(t testing.TB) (all []Example) {
	t.Helper()
	for line := range strings.Lines(examples) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(fields) != 4 {
			t.Fatalf("%q has %d fields", line, len(fields))
		}
		all = append(all, Example{fields[0], fields[1], fields[2], fields[3]})
	}
	return all
}
