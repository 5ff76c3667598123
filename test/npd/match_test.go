package npd

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/node-problem-detector/pkg/systemlogmonitor"
	logtypes "k8s.io/node-problem-detector/pkg/systemlogmonitor/types"

	"github.com/nodeagent/nodeagent/pkg/detect/npd"
)

// corpora are lines to match: those that the agent's own rules are tried with, and awkward ones.
func corpora(t testing.TB) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir("../../pkg/detect/kernellog", func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.Contains(name, "fuzz") || !strings.Contains(name, "/testdata/") {
			return err
		}
		for line := range strings.Lines(string(read(t, name))) {
			lines = append(lines, strings.TrimSpace(line))
		}
		return nil
	})
	if err != nil || len(lines) < 500 {
		t.Fatalf("%d lines, %v", len(lines), err)
	}
	return append(lines, awkward()...)
}

func awkward() []string {
	return []string{
		"", "", "x", "Remounting filesystem read-only", "EXT4-fs (sda1): Remounting filesystem read-only",
		"Remounting filesystem read-only and more", "task docker:1234 blocked for more than 120 seconds.",
		"task kworker/u8:2:77 blocked for more than 120 seconds.", "INFO: task docker:20744 blocked for more than " +
			"120 seconds. ",
		"Killed process 1012 (heapster) total-vm:327128kB, anon-rss:306328kB, file-rss:11132kB",
		"Started Kubernetes kubelet.",
		"Starting Docker Application Container Engine...", "Stopping kubelet.service...", "begin", "middle", "end",
		"é\xff\x00",
		"kernel BUG at fs/buffer.c:1", "multi\nline message", "panic: runtime error", "goroutine 1 [running]:",
		"BEGIN x", "x END",
	}
}

// patterns are those of all shipped files, and some for corner cases of matching.
func patterns(t testing.TB) []string {
	t.Helper()
	found := []string{
		`begin\nmiddle\nend`, `begin(.|\n)*end`, `(?s)begin.*end`, `(?m)^end$`, `^end`, `end$`, `middle|end`,
		`(middle|end)`, `begin|x`,
		`.`, ``, `\s*`, `[^x]+`, `x\nRemount\w+ filesystem read-only`, `(?i)REMOUNTING FILESYSTEM READ-ONLY`, `\bend\b`,
		`mid{1,2}le`,
		`Killed process \d+ (.+) total-vm`, `total-vm.*kB.*`, `panic: .*\ngoroutine \d+ \[running\]:`,
		`(?:begin|middle)\n(?:middle|end)`,
		`a*`, `\S+ \S+`, `\n`, `[\s\S]*BUG[\s\S]*`, `multi`, `line message`, `multi\nline`, `BEGIN.*|.*END`,
		`(x|y)?end`, `docker|`,
	}
	names, _ := filepath.Glob(filepath.Join(shipped(t), "*.json"))
	pattern := regexp.MustCompile(`"pattern": "((?:[^"\\]|\\.)*)"`)
	for _, name := range names {
		for _, m := range pattern.FindAllStringSubmatch(string(read(t, name)), -1) {
			found = append(found, strings.ReplaceAll(m[1], `\\`, `\`))
		}
	}
	return found
}

// theirs returns the answer of node-problem-detector's buffer, joined as it joins messages.
func theirs(b systemlogmonitor.LogBuffer, pattern string) (string, bool) {
	logs := b.Match(pattern)
	var messages []string
	for _, l := range logs {
		messages = append(messages, l.Message)
	}
	return strings.Join(messages, "\n"), len(logs) > 0
}

// After every line, every pattern has the same result as in node-problem-detector, whatever the size of the buffer.
func TestMatching(t *testing.T) {
	all, lines := patterns(t), corpora(t)
	random := rand.New(rand.NewPCG(1, 2))
	for _, size := range []int{1, 2, 3, 10, 50} {
		t.Run(fmt.Sprintf("%d lines", size), func(t *testing.T) {
			matched, compared := 0, 0
			their, our := systemlogmonitor.NewLogBuffer(size), newOurs(t, size, all)
			for range 400 {
				line := lines[random.IntN(len(lines))]
				if random.IntN(3) == 0 { // so that awkward lines come close together
					line = awkward()[random.IntN(len(awkward()))]
				}
				their.Push(&logtypes.Log{Message: line})
				our.Push(line)
				for i, pattern := range all {
					want, wantOK := theirs(their, pattern)
					got, ok := our.Match(i)
					if compared++; ok {
						matched++
					}
					if ok != wantOK || ok && got != want {
						t.Fatalf("%q after %q:\nagent %v %q\nnode-problem-detector %v %q", pattern, line, ok, got,
							wantOK, want)
					}
				}
			}
			if matched < 100 {
				t.Errorf("only %d of %d matched: the comparison means little", matched, compared)
			}
		})
	}
}

func newOurs(t testing.TB, size int, patterns []string) *npd.Buffer {
	t.Helper()
	b, err := npd.NewBuffer(size, patterns...)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// FuzzMatching searches for lines and patterns for which the two results differ.
func FuzzMatching(f *testing.F) {
	for _, p := range []string{`a|b`, `x\ny`, `^a`, `(?m)^b$`, `[^a]`, `\s+b`, `abc\z`, `(abc|abd)e*`} {
		f.Add(p, "abc\nabd\nx\ny\nb", 3)
	}
	f.Fuzz(func(t *testing.T, pattern, text string, size int) {
		if size < 1 || size > 20 || len(pattern) > 200 || len(text) > 2000 {
			return
		}
		our, err := npd.NewBuffer(size, pattern)
		if err != nil {
			return // node-problem-detector ends the process, or panics
		}
		their := systemlogmonitor.NewLogBuffer(size)
		for line := range strings.SplitSeq(text, "\n") {
			their.Push(&logtypes.Log{Message: line})
			our.Push(line)
			want, wantOK := theirs(their, pattern)
			if got, ok := our.Match(0); ok != wantOK || got != want && ok {
				t.Fatalf("%q after %q: agent %v %q, node-problem-detector %v %q", pattern, line, ok, got, wantOK, want)
			}
		}
	})
}
