package kmsg

import (
	"log/slog"
	"testing"
	"time"
)

// A record written after the machine slept gets the right age, even if the reader started before.
func TestKernelRecordAfterASleep(t *testing.T) {
	slept := time.Duration(0)
	var up []time.Duration
	k := &kernelLogReader{
		log: slog.New(slog.DiscardHandler), each: func(r KernelRecord) { up = append(up, r.Up) },
		slept: func() time.Duration { return slept }, buffer: make([]byte, 64),
	}
	add := func(line string) {
		t.Helper()
		if err := k.add(copy(k.buffer, line), nil); err != nil {
			t.Fatal(err)
		}
	}
	add("6,1,1000000,-;before\n")
	slept = time.Hour
	add("6,2,2000000,-;after\n")
	if len(up) != 2 || up[0] != time.Second || up[1] != time.Hour+2*time.Second {
		t.Errorf("records at %v, want 1s and 1h0m2s", up)
	}
}
