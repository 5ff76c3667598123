package replay

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
)

// corpus returns the lines of a file of testdata/corpus, without comments.
func corpus(t testing.TB, name string) (lines []string) {
	t.Helper()
	file, err := os.Open(filepath.Join("testdata", "corpus", name))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		if line := scanner.Text(); line != "" && !strings.HasPrefix(line, "# ") {
			lines = append(lines, line)
		}
	}
	return lines
}

func newDaemonTable(t testing.TB) *kernellog.Matcher {
	t.Helper()
	m, err := kernellog.NewMatcher(rules.Daemons())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestCorpusMixed: lines of all formats in one log.
func TestCorpusMixed(t *testing.T) {
	m, daemons := kernelMatcher(t), newDaemonTable(t)
	var log strings.Builder
	var lines []string
	for _, c := range corpus(t, "words.txt") {
		rule, line, _ := strings.Cut(c, " | ")
		if rule == "-" {
			continue
		}
		lines = append(lines, line)
		log.WriteString(line + "\n")
	}
	found := map[int]bool{}
	_, err := Replay{Daemons: daemons}.Read(m, strings.NewReader(log.String()), func(f Found) error {
		found[f.Number] = true
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range lines {
		if !found[i+1] {
			t.Errorf("line %d is recognised alone only: %s", i+1, line)
		}
	}
}
