package storage

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// errorCounters keeps the disks' own error counters across restarts of the agent. An old error is weak evidence: many
// disks remapped a sector years ago. A growing number announces a failure.
type errorCounters struct {
	saved detect.Saved[map[string]errorCounter]
	disks map[string]errorCounter // by the identity of the disk: serial number, WWID; at most maxCounters
	turn  int
	added map[string]int // the turn at which a disk was last added; missing if not since the agent's start
}

// errorCounter is the state of one disk in the last run.
type errorCounter struct {
	Count uint64        `json:"count"`
	From  uint64        `json:"from,omitempty"` // its value before it grew
	Boot  string        `json:"boot,omitempty"` // when it grew last
	Up    time.Duration `json:"up,omitempty"`
}

const (
	// growthReported is how long the growth of a counter is reported: long enough for a person to see it, and for most
	// failing disks to grow it again.
	growthReported = 24 * time.Hour
	maxCounters    = 1024
	maxCounterKey  = 128
)

func newErrorCounters(store detect.StateStore, key string) *errorCounters {
	c := &errorCounters{saved: detect.Saved[map[string]errorCounter]{Store: store, Key: key}, added: map[string]int{}}
	c.disks, _ = c.saved.Load(func(d map[string]errorCounter) bool { return d != nil && len(d) <= maxCounters })
	if c.disks == nil {
		c.disks = make(map[string]errorCounter)
	}
	return c
}

// add records a disk's counter and returns by how much it grew within the last day of this boot. A counter that
// decreased belongs to another disk, or was reset.
func (c *errorCounters) add(disk string, count uint64, now finding.Timestamp) (grown uint64) {
	disk = checkkit.Sanitize(disk, maxCounterKey)
	c.turn++
	c.added[disk] = c.turn
	last, known := c.disks[disk]
	next := last
	next.Count = count
	reported := known && last.Boot == now.Boot && now.SinceBoot >= last.Up && now.SinceBoot-last.Up < growthReported
	switch {
	case !known || count < last.Count:
		next = errorCounter{Count: count}
	case count > last.Count:
		if !reported {
			next.From = last.Count
		}
		next.Boot, next.Up = now.Boot, now.SinceBoot
	case !reported:
		next = errorCounter{Count: count}
	}
	if next != last || !known {
		if !known && len(c.disks) >= maxCounters {
			c.forgetOldest()
		}
		c.disks[disk] = next
		c.saved.Save(c.disks)
	}
	if next.Boot == "" {
		return 0
	}
	return next.Count - next.From
}

// forgetOldest drops the disk that was added least recently: most likely it was removed.
func (c *errorCounters) forgetOldest() {
	oldest := slices.MinFunc(slices.Collect(maps.Keys(c.disks)), func(a, b string) int {
		return cmp.Compare(c.added[a], c.added[b])
	})
	delete(c.disks, oldest)
	delete(c.added, oldest)
}
