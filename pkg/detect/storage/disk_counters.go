package storage

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// errorCounters remembers counters that disks keep of their own errors, over restarts of the agent. An old error says
// little: many a disk has remapped a sector years ago. That the number grows is what comes before a failure.
type errorCounters struct {
	memory detect.StateStore // may be nil
	key    string
	disks  map[string]errorCounter // by what is the disk's own: serial number, WWID; at most maxCounters
	turn   int
	noted  map[string]int // the turn at which a disk was last seen; none since the agent has started
}

// errorCounter is what was known of one disk at the last look.
type errorCounter struct {
	Count uint64        `json:"count"`
	From  uint64        `json:"from,omitempty"` // what it was before it grew
	Boot  string        `json:"boot,omitempty"` // when it grew last
	Up    time.Duration `json:"up,omitempty"`
}

const (
	// growthTold is how long it is told that a counter grew: long enough for a person to see it, and for most disks
	// that are about to fail to grow again.
	growthTold    = 24 * time.Hour
	maxCounters   = 1024
	maxCounterKey = 128
)

func newErrorCounters(memory detect.StateStore, key string) *errorCounters {
	c := &errorCounters{memory: memory, key: key, disks: make(map[string]errorCounter), noted: make(map[string]int)}
	if memory == nil {
		return c
	}
	if data, ok := memory.Load(key); ok {
		var disks map[string]errorCounter
		if err := json.Unmarshal(data, &disks); err == nil && len(disks) <= maxCounters {
			for disk, counter := range disks {
				c.disks[disk] = counter
			}
		}
	}
	return c
}

// note takes what a disk's counter is now and returns by how much it grew within the last day of this boot. A counter
// that went backwards belongs to another disk, or was reset.
func (c *errorCounters) note(disk string, count uint64, now finding.Timestamp) (grown uint64) {
	disk = checkkit.Sanitize(disk, maxCounterKey)
	c.turn++
	c.noted[disk] = c.turn
	last, known := c.disks[disk]
	next := last
	next.Count = count
	told := known && last.Boot == now.Boot && now.SinceBoot >= last.Up && now.SinceBoot-last.Up < growthTold
	switch {
	case !known || count < last.Count:
		next = errorCounter{Count: count}
	case count > last.Count:
		if !told {
			next.From = last.Count
		}
		next.Boot, next.Up = now.Boot, now.SinceBoot
	case !told:
		next = errorCounter{Count: count}
	}
	if next != last || !known {
		if !known && len(c.disks) >= maxCounters {
			c.forgetOldest()
		}
		c.disks[disk] = next
		c.save()
	}
	if next.Boot == "" {
		return 0
	}
	return next.Count - next.From
}

// forgetOldest forgets the disk that has not been seen for longest: most likely it was taken away.
func (c *errorCounters) forgetOldest() {
	oldest := slices.MinFunc(slices.Collect(maps.Keys(c.disks)), func(a, b string) int {
		return cmp.Compare(c.noted[a], c.noted[b])
	})
	delete(c.disks, oldest)
	delete(c.noted, oldest)
}

func (c *errorCounters) save() {
	if c.memory == nil {
		return
	}
	if data, err := json.Marshal(c.disks); err == nil {
		c.memory.Save(c.key, data)
	}
}
