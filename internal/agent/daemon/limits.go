package daemon

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"
)

// Two processors are more than the agent ever needs; on a machine with 128 of them, each further one would cost memory.
// The garbage collector runs early, because the agent allocates little over a long time, and unused memory is returned
// after the start and now and then.
const (
	processors   = 2
	garbage      = 50 // percent: GOGC
	releaseAfter = 15 * time.Second
	releaseEvery = 10 * time.Minute
)

// setRuntimeLimits sets the limits of this process.
func setRuntimeLimits() {
	runtime.GOMAXPROCS(min(processors, runtime.NumCPU()))
	debug.SetGCPercent(garbage)
}

// releaseMemory returns unused memory to the kernel until ctx ends.
func releaseMemory(ctx context.Context) error {
	memory := time.NewTimer(releaseAfter)
	defer memory.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-memory.C:
			debug.FreeOSMemory()
			memory.Reset(releaseEvery)
		}
	}
}
