package kernellog

import (
	"os"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/test/kernelformats/formats"
)

// TestSampleOfErrors: of the faults among all that the kernel's sources print at the level of errors, chosen at random
// and judged before the rules were tried (64 % were seen then), most are recognised.
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
		all[part[0]]++
		if _, ok := m.Match([]byte(text)); ok {
			seen[part[0]]++
		} else if part[0] == "fault" {
			t.Logf("not seen: %s", text)
		}
	}
	t.Logf("%v of %v are recognised", seen, all)
	if seen["fault"]*100 < all["fault"]*77 || all["fault"] < 100 {
		t.Errorf("%d of %d faults are recognised", seen["fault"], all["fault"])
	}
}
