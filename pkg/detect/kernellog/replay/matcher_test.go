package replay

import (
	"slices"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/test/need"
)

func TestBenignLinesCostNoAllocation(t *testing.T) {
	need.Flag(t, !raceDetector, "not -race, which throws away what regexp keeps for the next line")
	m, lines := kernelMatcher(t), benignLines(t)
	lines = slices.DeleteFunc(lines, func(line []byte) bool {
		_, ok := m.Match(line) // recoveries, and links while the machine starts, copy the subject
		return ok
	})
	if n := testing.AllocsPerRun(10, func() {
		for _, line := range lines {
			m.Match(line)
		}
	}); n > 0 || len(lines) < 100 {
		t.Errorf("%v allocations for %d lines", n, len(lines))
	}
}

// BenchmarkBenign is a line of a healthy kernel, whose level is known and below that of errors.
func BenchmarkBenign(b *testing.B) {
	tally, lines := kernellog.NewTally(kernelMatcher(b)), benignLines(b)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		tally.Observe(kernellog.Record{Text: lines[i], Level: kernellog.LevelInfo})
		if i++; i == len(lines) {
			i = 0
		}
	}
}
