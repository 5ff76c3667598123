package npd

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/node-problem-detector/pkg/systemlogmonitor"
	logtypes "k8s.io/node-problem-detector/pkg/systemlogmonitor/types"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/detect/npd"
)

// benign are the lines of kernels without faults.
func benign(b *testing.B) []string {
	b.Helper()
	names, err := filepath.Glob("../../pkg/detect/kernellog/replay/testdata/benign/*")
	if err != nil || len(names) == 0 {
		b.Fatalf("%d files, %v", len(names), err)
	}
	var lines []string
	for _, name := range names {
		for line := range strings.Lines(string(read(b, name))) {
			if line = strings.TrimSpace(line); line != "" {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

// kernelMonitor is node-problem-detector's own configuration for the kernel's log: 14 rules.
func kernelMonitor(b *testing.B) systemlogmonitor.MonitorConfig {
	b.Helper()
	var c systemlogmonitor.MonitorConfig
	if err := json.Unmarshal(read(b, filepath.Join(shipped(b), "kernel-monitor.json")), &c); err != nil {
		b.Fatal(err)
	}
	return c
}

// BenchmarkBenignLine is the cost of one line of the kernel that no rule matches: in the agent's own table with all its
// rules, in a file of node-problem-detector as the agent runs it, and in node-problem-detector.
func BenchmarkBenignLine(b *testing.B) {
	lines, config := benign(b), kernelMonitor(b)
	var patterns []string
	for _, r := range config.Rules {
		patterns = append(patterns, r.Pattern)
	}
	b.Run("agent, own table", func(b *testing.B) {
		m, err := kernellog.NewMatcher(rules.Kernel())
		if err != nil {
			b.Fatal(err)
		}
		texts := make([][]byte, len(lines))
		for i, line := range lines {
			texts[i] = []byte(line)
		}
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			m.Match(texts[i%len(texts)])
		}
	})
	b.Run("agent, kernel-monitor.json", func(b *testing.B) {
		buffer, err := npd.NewBuffer(config.BufferSize, patterns...)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			buffer.Push(lines[i%len(lines)])
			for p := range patterns {
				buffer.Match(p)
			}
		}
	})
	b.Run("node-problem-detector, kernel-monitor.json", func(b *testing.B) {
		buffer := systemlogmonitor.NewLogBuffer(config.BufferSize)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			buffer.Push(&logtypes.Log{Message: lines[i%len(lines)]})
			for _, p := range patterns {
				buffer.Match(p)
			}
		}
	})
}
