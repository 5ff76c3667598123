package inspect_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/pkg/inspect/bundle"
)

var update = flag.Bool("update", false, "record the nodes of testdata anew")

// The recorded inspections of testdata, from the nodes of full_node_test.go. A bug report with a file of "nodeagent
// inspect --record" becomes a line here.
func TestRecordedNodes(t *testing.T) {
	for name, want := range map[string]map[inspect.Verdict]int{
		"leftover":       {inspect.Live: 20, inspect.Leftover: 2},
		"running":        {inspect.Live: 20, inspect.Leftover: 2},
		"kubelet-silent": {inspect.Unknown: 22},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join("testdata", name+".json.gz")
			if *update {
				data, err := bundle.Bundle{Agent: "test", Evidence: inspect.RecordNode(t, name)}.Encode(bundle.MaxFile)
				if err == nil {
					err = os.WriteFile(file, data, 0o644)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			recorded, err := bundle.Read(file)
			if err != nil {
				t.Fatal(err)
			}
			report, _ := recorded.Evidence.Evaluate()
			got := make(map[inspect.Verdict]int)
			for _, o := range report.Objects {
				got[o.Verdict]++
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A file has the same verdicts as the node, anonymous or not.
func TestFileKeepsVerdicts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := inspect.DrawEvidence(t)
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
func outline(r inspect.Report, anonymous bool) []string {
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
