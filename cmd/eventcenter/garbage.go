package main

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// What the center may have of the machine's memory, in bytes.
const (
	memoryAtRest        = 110 << 20 // with what is not of the runtime, as the program's text, 150 MiB
	memoryPerConnection = 28 << 10

	// percent of what is in use
	leastGarbage = 40  // whatever is in use: in a storm with TLS that is over half of what the center may have
	usualGarbage = 100 // what the runtime does unasked, and the least while little is in use
	mostGarbage  = 400
)

// collectRarely lets garbage wait while there is room for it, until ctx ends: with 10,000 agents connected, a tenth of the
// center's time is the search for what is still in use. Who has set GOGC knows better.
func collectRarely(ctx context.Context, connections func() int) {
	if os.Getenv("GOGC") != "" {
		return
	}
	defer debug.SetGCPercent(usualGarbage)
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"},
		{Name: "/memory/classes/heap/stacks:bytes"}}
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for now := usualGarbage; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		metrics.Read(samples)
		live, scanned, stacks := samples[0].Value.Uint64(), samples[1].Value.Uint64(), samples[2].Value.Uint64()
		wanted := garbage(int64(live), int64(scanned), int64(stacks), connections())
		if 10*max(wanted-now, now-wanted) > now { // to set it stops everything for a moment
			now = wanted
			debug.SetGCPercent(now)
		}
	}
}

// garbage returns how much garbage may wait, in per cent of what is in use: the heap, and what is scanned of the stacks.
func garbage(live, scanned, stacks int64, connections int) int {
	room := memoryAtRest + memoryPerConnection*int64(connections) - stacks
	room -= room/8 + live // an eighth is what the runtime needs itself, and between objects
	least := int64(usualGarbage)
	if live > memoryAtRest {
		least = leastGarbage
	}
	return int(min(max(100*room/max(live+scanned, 1), least), mostGarbage))
}
