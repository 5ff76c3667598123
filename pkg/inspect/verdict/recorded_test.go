package verdict_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nodeagent/nodeagent/pkg/inspect/bundle"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/verdict"
)

// A file has the same verdicts as the node, anonymous or not.
func TestFileKeepsVerdicts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := verdict.DrawEvidence(t)
		anonymous := rapid.Bool().Draw(t, "anonymous")
		data, err := bundle.Bundle{Evidence: e, Anonymous: anonymous}.Encode(bundle.MaxFile)
		if err != nil {
			t.Fatal(err)
		}
		b, err := bundle.Decode(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		want, _ := e.Evaluate()
		got, _ := b.Evidence.Evaluate()
		if diff := cmp.Diff(outline(want, anonymous), outline(got, anonymous)); diff != "" {
			t.Fatal(diff)
		}
	})
}

// outline is the part of a report that does not depend on names.
func outline(r object.Report, anonymous bool) []string {
	var lines []string
	for _, o := range r.Objects {
		line := string(o.Kind) + " " + o.ID + " " + o.Pod.UID + " " + string(o.Verdict)
		if !anonymous {
			line += " " + o.Why
		}
		lines = append(lines, line)
	}
	for _, g := range r.Gates {
		lines = append(lines, g.Name+map[bool]string{true: " open", false: " closed"}[g.Open])
	}
	return lines
}
