package kernellog

import (
	"os"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/test/kernelformats/formats"
)

// TestSampleOfErrors: of the formats that the kernel's sources print at the level of errors, a random sample was judged
// before the rules were tried (64 % of its faults were recognised then); most of its faults are recognised.
func TestSampleOfErrors(t *testing.T) {
	seen, all := sampled(t, "testdata/sample.txt", LevelError)
	if seen["fault"]*100 < all["fault"]*77 || all["fault"] < 100 {
		t.Errorf("%d of %d faults are recognised", seen["fault"], all["fault"])
	}
}

// TestSampleOfWarnings: of the warnings in the sources, chosen and judged in the same way, few are faults. Of those 8
// of 23 were recognised before the sample led to more words; of the 127 others two were, and are.
func TestSampleOfWarnings(t *testing.T) {
	seen, all := sampled(t, "testdata/sample-warnings.txt", LevelWarning)
	if seen["fault"]*100 < all["fault"]*65 || all["fault"] < 20 {
		t.Errorf("%d of %d faults are recognised", seen["fault"], all["fault"])
	}
	if seen["no"] > 2 || all["no"] < 100 {
		t.Errorf("%d of %d lines that are no faults are recognised", seen["no"], all["no"])
	}
}

// sampled matches the formats of a sample at their level, and counts the recognised ones by judgement.
func sampled(t *testing.T, name string, level Level) (seen, all map[string]int) {
	t.Helper()
	m := newTable(t)
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	seen, all = map[string]int{}, map[string]int{}
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		part := strings.SplitN(strings.TrimSuffix(line, "\n"), " | ", 3)
		row := formats.Row{Format: formats.Unescape(part[2])}
		text := strings.ReplaceAll(row.Instances()[0], "\n", `\x0a`)
		all[part[0]]++
		_, ok := m.match(rules.TheKernel, level, []byte(text))
		if ok {
			seen[part[0]]++
		}
		if ok != (part[0] == "fault") {
			t.Logf("%s, recognised: %v: %s", part[0], ok, text)
		}
	}
	t.Logf("%v of %v are recognised", seen, all)
	return seen, all
}
