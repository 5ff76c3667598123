package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"

	"github.com/nodeagent/nodeagent/test/harness"
)

// benchmarked is one line of a benchmark's output:
//
//	BenchmarkBenignLine/agent,_own_table-2    1000000    713.2 ns/op    0 B/op    0 allocs/op
var benchmarked = regexp.MustCompile(
	`(?m)^BenchmarkBenignLine/(\S+?)(?:-\d+)?\s+\d+\s+([0-9.]+) ns/op\s+\d+ B/op\s+(\d+) allocs/op`)

// matchers measures the cost of a line of the kernel that no rule matches, in the agent and in node-problem-detector's
// own code.
func (b *bench) matchers(ctx context.Context) error {
	logf("matching benign lines of the kernel")
	repo, err := harness.Repo()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "BenignLine", ".")
	cmd.Dir = filepath.Join(repo, "test/npd")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("benchmark of the matchers: %w\n%s", err, out)
	}
	results := map[string]string{}
	for _, found := range benchmarked.FindAllStringSubmatch(string(out), -1) {
		results[found[1]] = fmt.Sprintf("%s ns, %s allocations", found[2], found[3])
	}
	const table, file, peer = "agent,_own_table", "agent,_kernel-monitor.json",
		"node-problem-detector,_kernel-monitor.json"
	for _, name := range []string{table, file, peer} {
		if results[name] == "" {
			return fmt.Errorf("benchmark of the matchers: no line of %s in\n%s", name, out)
		}
	}
	b.rows = append(b.rows,
		row{"benign kernel line, own table", results[table], "–", "1 µs, 0"},
		row{"benign kernel line, kernel-monitor.json (14 rules)", results[file], results[peer], ""})
	return nil
}
