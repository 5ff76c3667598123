package daemon

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// The agent never needs more than two processors; on a machine with 128 of them, each further one would cost memory.
// The garbage collector runs early, because the agent allocates little over a long time. Memory that only the start or
// an inspection needed is returned soon after it; the Go runtime itself would keep most of it.
const (
	processors   = 2
	garbage      = 50 // percent: GOGC
	releaseAfter = 15 * time.Second
	releaseEvery = time.Minute
	unused       = 3 << 20 // bytes: less is not worth a collection, which takes some milliseconds
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
			if unusedMemory() > unused {
				debug.FreeOSMemory()
			}
			memory.Reset(releaseEvery)
		}
	}
}

// unusedMemory returns the bytes of the heap that hold no live objects.
func unusedMemory() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(samples)
	free, objects, live := samples[0].Value.Uint64(), samples[1].Value.Uint64(), samples[2].Value.Uint64()
	return free + objects - min(objects, live)
}
