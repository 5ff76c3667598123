package kernellog

import (
	"os"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/test/kernelformats/formats"
)

// TestSampleOfErrors: of all that the kernel's sources print at the level of errors, most faults are recognised when the
// level is known.
func TestSampleOfErrors(t *testing.T) {
	m := newTable(t)
	data, err := os.ReadFile("testdata/sample.txt")
	if err != nil {
		t.Fatal(err)
	}
	seen, all := map[string]int{}, map[string]int{}
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		part := strings.SplitN(strings.TrimSuffix(line, "\n"), " | ", 3)
		row := formats.Row{Format: formats.Unescape(part[2])}
		text := strings.ReplaceAll(row.Instances()[0], "\n", `\x0a`)
		hit, ok := m.match(rules.TheKernel, LevelError, []byte(text))
		all[part[0]]++
		id := "-"
		if ok {
			seen[part[0]]++
			id = hit.Rule.ID
		}
		t.Logf("%-5s %-28s %s", part[0], id, text)
	}
	for _, verdict := range []string{"fault", "start", "no"} {
		t.Logf("%s: %d of %d are recognised", verdict, seen[verdict], all[verdict])
	}
}
