package daemon

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"time"
)

// The agent never needs more than two processors; on a machine with 128 of them, each further one would cost memory. One
// would cost a tenth less time at rest, but a page fault on a disk that hangs would stop all of the agent at once: with a
// second one, the rest still finds and reports the disk until the next collection of garbage. The garbage collector runs
// early, because the agent allocates little over a long time. Memory that only the start or an inspection needed is
// returned soon after it; the Go runtime itself would keep most of it.
const (
	processors   = 2
	timerSlack   = time.Millisecond
	garbage      = 50 // percent: GOGC
	releaseAfter = 15 * time.Second
	releaseEvery = time.Minute
	unused       = 3 << 20 // bytes: less is not worth a collection, which takes some milliseconds of two processors
)

// setRuntimeLimits sets the limits of this process.
func setRuntimeLimits() {
	runtime.GOMAXPROCS(min(processors, runtime.NumCPU()))
	debug.SetGCPercent(garbage)
	setTimerSlack()
}

// setTimerSlack permits the kernel to wake each thread of this process that much later than wanted: proc(5),
// /proc/PID/timerslack_ns. Go's monitor thread naps for 20 µs again and again while any code runs: a fifth of the
// processor time at rest without this. Later threads and children inherit it. Without CAP_SYS_NICE only the own thread
// may be set; systemd's unit has TimerSlackNSec= for that.
func setTimerSlack() {
	threads, _ := os.ReadDir("/proc/self/task")
	for _, thread := range threads {
		name := "/proc/" + thread.Name() + "/timerslack_ns"
		_ = os.WriteFile(name, []byte(strconv.FormatInt(timerSlack.Nanoseconds(), 10)), 0) // a thread may have ended
	}
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
			if readHeap().excessive() {
				debug.FreeOSMemory()
			}
			memory.Reset(releaseEvery)
		}
	}
}

// heap is the use of Go's heap in bytes: free memory that the kernel has not got back, objects with the dead ones among
// them, and the objects that the last collection found alive.
type heap struct{ free, objects, live uint64 }

func readHeap() heap {
	samples := []metrics.Sample{{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(samples)
	return heap{samples[0].Value.Uint64(), samples[1].Value.Uint64(), samples[2].Value.Uint64()}
}

// excessive reports whether the heap holds much more without live objects than it does between two collections of an
// agent at rest.
func (h heap) excessive() bool {
	return h.free+h.objects-min(h.objects, h.live) > h.live*garbage/100+unused
}
