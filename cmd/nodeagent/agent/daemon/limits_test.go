package daemon

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/test/need"
)

// The kernel may wake each thread of the process a millisecond late, Go's monitor among them, which is older than any Go
// code; and those that start later.
func TestTimerSlack(t *testing.T) {
	need.Root(t, "sets the timer slack of other threads")
	setTimerSlack()
	later := make(chan bool)
	go func() {
		runtime.LockOSThread() // it ends with the goroutine
		<-later
	}()
	defer close(later)
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil || len(threads) < 2 {
		t.Fatalf("%d threads: %v", len(threads), err)
	}
	for _, thread := range threads {
		slack, err := os.ReadFile("/proc/" + thread.Name() + "/timerslack_ns")
		if errors.Is(err, fs.ErrNotExist) || err == nil && strings.TrimSpace(string(slack)) == "1000000" {
			continue
		}
		t.Errorf("thread %s: %q, %v", thread.Name(), slack, err)
	}
}

// At rest, half of the live heap is free or garbage all the time: no collection is forced for that. The rest of a start or
// of a pass is given back.
func TestExcessiveHeap(t *testing.T) {
	for name, test := range map[string]struct {
		heap
		want bool
	}{
		"just collected, at rest":     {heap{free: 5 << 20, objects: 9 << 20, live: 9 << 20}, false},
		"soon to be collected":        {heap{free: 1 << 20, objects: 13 << 20, live: 9 << 20}, false},
		"after a pass: free":          {heap{free: 20 << 20, objects: 9 << 20, live: 9 << 20}, true},
		"after a pass: not collected": {heap{free: 1 << 20, objects: 28 << 20, live: 9 << 20}, true},
		"allocated while read":        {heap{free: 1 << 20, objects: 8 << 20, live: 9 << 20}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.excessive(); got != test.want {
				t.Errorf("%t", got)
			}
		})
	}
}
