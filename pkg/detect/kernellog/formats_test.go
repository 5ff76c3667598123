package kernellog

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/test/kernelformats/formats"
)

// TestKernelFormats instantiates each format that test/kernelformats extracted from the kernel's sources: the rule in
// its verdict must match, and no rule if the verdict is benign.
func TestKernelFormats(t *testing.T) {
	const dir = "testdata/formats"
	m := newTable(t)
	names, err := filepath.Glob(dir + "/*.txt")
	if err != nil || len(names) == 0 {
		t.Fatalf("%d families, %v", len(names), err)
	}
	for _, name := range names {
		family := strings.TrimSuffix(filepath.Base(name), ".txt")
		t.Run(family, func(t *testing.T) {
			rows, err := formats.Read(dir, family)
			if err != nil {
				t.Fatal(err)
			}
			versions := map[string]bool{}
			for _, row := range rows {
				for _, v := range row.Versions {
					versions[v] = true
				}
				tryFormat(t, m, row)
			}
			if len(versions) < 2 {
				t.Errorf("%d kernel versions: at least 2 are needed", len(versions))
			}
		})
	}
}

func tryFormat(t *testing.T, m *Matcher, row formats.Row) {
	if row.Verdict == formats.Unjudged {
		t.Errorf("%s: %q has no verdict: a rule must recognise it, or %q", row.File, row.Format, formats.Benign)
		return
	}
	id, recovers := row.Rule()
	for _, text := range row.Instances() {
		// In /dev/kmsg a text of several lines is one record, in dmesg several.
		record := strings.ReplaceAll(text, "\n", `\x0a`)
		lines := slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool { return line == "" })
		hit, ok := m.Match([]byte(record))
		switch {
		case id == "" && ok:
			t.Errorf("%s: benign, but %s matches: %s", row.File, hit.Rule.ID, record)
		case id != "" && !ok:
			t.Errorf("%s: %s does not match: %s", row.File, row.Verdict, record)
		case id != "" && (hit.Rule.ID != id || hit.Recovered != recovers):
			t.Errorf("%s: %s, recovery %v, matches, not %s: %s", row.File, hit.Rule.ID, hit.Recovered, row.Verdict, record)
		}
		matched := slices.ContainsFunc(lines, func(line string) bool {
			hit, ok := m.Match([]byte(line))
			return ok && (id == "" || hit.Rule.ID == id && hit.Recovered == recovers)
		})
		if len(lines) > 1 && matched != (id != "") {
			t.Errorf("%s: %s: as lines of dmesg: %q", row.File, row.Verdict, lines)
		}
	}
}

// TestFormatsAreSmall: people must be able to read the data.
func TestFormatsAreSmall(t *testing.T) {
	names, _ := filepath.Glob("testdata/formats/*.txt")
	total := int64(0)
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
	}
	if total > 768<<10 {
		t.Errorf("%d bytes of formats: select fewer", total)
	}
}
