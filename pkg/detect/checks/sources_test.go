package checks

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// source matches the line of a fixture that names the origin of its content: the machine of the recording, or the
// copied document. The line is in the comment of a txtar archive, or at the head of another file.
var source = regexp.MustCompile(`(?m)^(?:# )?Source: (?:recorded 20\d\d-\d\d-\d\d on \S.+ \d\S*.*|` +
	`https://\S+ \(.+ \d\S*\))\.?$`)

// TestSources: invented data is no evidence of the output of a kernel, a kubelet or a runtime. Each check has at least
// one fixture recorded, or copied from documentation.
func TestSources(t *testing.T) {
	for _, check := range Checks(DefaultSettings(), Deps{}) {
		if !slices.ContainsFunc(filesOf(t, check.ID), hasSource) {
			t.Errorf("%s: no file of testdata/%s has a line %s", check.ID, check.ID, source)
		}
	}
}

// filesOf returns the files below testdata/<check ID>, which is beside the check.
func filesOf(t *testing.T, id string) (files []string) {
	t.Helper()
	for _, pattern := range []string{"*", "*/*"} {
		for _, below := range []string{"*", "*/*"} {
			found, err := filepath.Glob(filepath.Join("..", pattern, "testdata", id, below))
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, found...)
		}
	}
	return files
}

func hasSource(file string) bool {
	data, err := os.ReadFile(file)
	if err != nil {
		return false // a folder
	}
	if i := regexp.MustCompile(`(?m)^-- `).FindIndex(data); i != nil && filepath.Ext(file) == ".txtar" {
		data = data[:i[0]]
	}
	return source.Match(data[:min(len(data), 1000)])
}

func TestSourceForm(t *testing.T) {
	for line, ok := range map[string]bool{
		"Source: recorded 2026-11-22 on Linux 6.18.44 (x86-64 virtual machine, Debian 12).":                true,
		"A healthy node.\n\nSource: recorded 2026-11-22 on Linux 6.18.44, kubelet 1.33.1.\n":               true,
		"# Source: https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files (Linux 6.1).": true,
		"Source: https://kubernetes.io/docs/reference/instrumentation/metrics/ (Kubernetes 1.33)":          true,
		"Source: https://kubernetes.io/docs/reference/instrumentation/metrics/":                            false,
		"Source: recorded on a machine.": false,
		"Source: invented.":              false,
	} {
		if source.MatchString(line) != ok {
			t.Errorf("%s: want %v", line, ok)
		}
	}
}
