package agent

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"
)

// The agent shares the node with what the node is there for. Two processors are more than it ever needs: on a machine
// with 128 of them, each more would cost it memory. It collects garbage early, because it lives long and does little,
// and gives back memory that it needed for a moment only: at the start and now and then.
const (
	processors   = 2
	garbage      = 50 // percent: GOGC
	giveBackFrom = 15 * time.Second
	giveBackEach = 10 * time.Minute
)

// setRuntimeLimits sets the limits of this process.
func setRuntimeLimits() {
	runtime.GOMAXPROCS(min(processors, runtime.NumCPU()))
	debug.SetGCPercent(garbage)
}

// giveBack returns unused memory to the machine until ctx ends.
func giveBack(ctx context.Context) error {
	memory := time.NewTimer(giveBackFrom)
	defer memory.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-memory.C:
			debug.FreeOSMemory()
			memory.Reset(giveBackEach)
		}
	}
}
