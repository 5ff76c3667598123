package inspect_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/pkg/inspect/bundle"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

var update = flag.Bool("update", false, "record the nodes of testdata anew")

// The recorded inspections of testdata, from the nodes of full_node_test.go. A bug report with a file of "nodeagent
// inspect --record" becomes a line here.
func TestRecordedNodes(t *testing.T) {
	for name, want := range map[string]map[object.Verdict]int{
		"leftover":       {object.Live: 20, object.Leftover: 2},
		"running":        {object.Live: 20, object.Leftover: 2},
		"kubelet-silent": {object.Unknown: 22},
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
			got := make(map[object.Verdict]int)
			for _, o := range report.Objects {
				got[o.Verdict]++
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
