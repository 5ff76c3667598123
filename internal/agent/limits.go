package agent

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"
)

// The agent shares the node with what the node is there for. Two processors are more than it ever needs: on a machine with
// 128 of them, each more would cost it memory. It collects garbage early, because it lives long and does little, and gives
// back what it needed for a moment only: memory of its own at the start and now and then, pages of its program more often.
// Between two looks hardly any of those is used, and each comes back with up to a megabyte around it (large folios).
const (
	processors   = 2
	garbage      = 50 // percent: GOGC
	giveBackFrom = 15 * time.Second
	giveBackEach = 10 * time.Minute
	dropTextEach = 2 * time.Second
)

// setRuntimeLimits sets the limits of this process.
func setRuntimeLimits() {
	runtime.GOMAXPROCS(min(processors, runtime.NumCPU()))
	debug.SetGCPercent(garbage)
}

// giveBack returns unused memory to the machine until ctx ends.
func giveBack(ctx context.Context) error {
	text := programText()
	memory := time.NewTimer(giveBackFrom)
	defer memory.Stop()
	pages := time.NewTicker(dropTextEach)
	defer pages.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-memory.C:
			debug.FreeOSMemory()
			memory.Reset(giveBackEach)
		case <-pages.C:
		}
		drop(text)
	}
}
