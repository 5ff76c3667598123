package eventcenter

import "time"

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
