package eventcenter

import (
	"context"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// clock notices that the wall clock was set.
type clock struct {
	now        func() time.Time
	wall, read time.Time
}

func newClock(now func() time.Time) *clock { return &clock{now, now().Round(0), time.Now()} }

// jump returns by how much the wall clock was set since the last call, as far as it is a minute or more. A machine that
// was suspended has such a clock too.
func (c *clock) jump() time.Duration {
	wall, read := c.now().Round(0), time.Now()
	by := wall.Sub(c.wall) - read.Sub(c.read)
	c.wall, c.read = wall, read
	if by.Abs() < time.Minute {
		return 0
	}
	return by.Round(time.Second)
}

// Expire ends faults that their detectors have not reported again in time, until ctx ends: only the worker does this.
// Detectors have time to report after the center was away or had its clock set.
func (c *Center) Expire(ctx context.Context, add func(context.Context, []journal.Event) (journal.Appended, error)) {
	tick := time.NewTicker(upkeepEvery)
	defer tick.Stop()
	ready, clock := c.Now(), newClock(c.Now)
	for {
		if clock.jump() != 0 {
			ready = c.Now()
		}
		if ends := c.Model.Expired(c.Now(), ready); len(ends) > 0 {
			if _, err := add(ctx, ends); err != nil && ctx.Err() == nil {
				ready = c.Now() // the detectors could not report either
				c.Log.Error("end expired faults of detectors failed, retrying", "faults", len(ends), "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
