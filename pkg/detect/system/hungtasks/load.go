package hungtasks

import (
	"math"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/system/load"
)

// The load counts a task in state D like one that runs. Every 5 s and a tick (LOAD_FREQ) the kernel computes
//
//	load1 = load1 × e + n × (1 − e)     n: tasks that run or are in state D; e = exp(−5/60), 1884/2048
//
// so that with n ≥ 1 in k updates load1 has become load1 × eᵏ + 1 − eᵏ at least. If it is less, no task was in state D
// all that time, and no thread of the node has to be read: on a node with constant load this holds below 0.77. A higher
// load proves nothing. The running tasks cannot be subtracted: their number is known for now only, not for the moments
// at which the kernel counted.
//
// https://git.kernel.org/pub/scm/linux/kernel/git/torvalds/linux.git/tree/kernel/sched/loadavg.c

const (
	loadDecay    = 1884.0 / 2048
	loadShortest = 5 * time.Second
	loadLongest  = 5010 * time.Millisecond // 501 ticks of 10 ms, the coarsest clock
	// loadError is the error of two numbers with two digits, and of the kernel's rounding to 1/2048 in each update.
	loadError = 0.02
	// loadGap is the least time between two readings of the load that are compared.
	loadGap = 25 * time.Second
	// loadUnknown is the load caused by a task blocked for 40 s, whatever the load was before.
	loadUnknown = 0.5
)

// loadReading is the load at a time since boot.
type loadReading struct {
	at    time.Duration
	load1 float64
}

// excludes reports whether no task can have been in state D from one reading to the next.
func (before loadReading) excludes(now loadReading) bool {
	if before.at == 0 {
		return now.load1 < loadUnknown
	}
	least := math.Inf(1)
	elapsed := now.at - before.at
	for k := int(elapsed / loadLongest); k <= int(elapsed/loadShortest)+1; k++ {
		// The first update may miss the task: a processor that sleeps without ticks is counted one update later.
		blocked := 1 - math.Pow(loadDecay, float64(max(k-1, 0)))
		least = min(least, before.load1*math.Pow(loadDecay, float64(k))+blocked)
	}
	return now.load1 < least-loadError
}

// nothingBlocks reports whether the load proves that no task has been blocked since the last reading.
func (m *hungTasks) nothingBlocks(files host.Files, now time.Duration) (bool, error) {
	seen, err := checkkit.Parse(files, "/proc/loadavg", load.ParseLoadavg)
	if err != nil {
		return false, err
	}
	if m.load.at > 0 && now-m.load.at < loadGap {
		return false, nil // too soon to tell
	}
	next := loadReading{now, seen.Load1}
	excluded := m.load.excludes(next)
	m.load = next
	return excluded, nil
}
