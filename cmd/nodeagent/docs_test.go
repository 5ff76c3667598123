package main

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
)

var update = flag.Bool("update", false, "write the generated pages anew")

// TestDocs fails when a generated page is not what the code says.
func TestDocs(t *testing.T) {
	const page = "../../docs/checks.md"
	want := checksPage(everyCheck(), rules.Kernel(), rules.Daemons())
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s: run go test ./cmd/nodeagent -run Docs -update (-code +page):\n%s", page, diff)
	}
}
