package detect

import (
	"math/rand/v2"
	"time"
)

// grid is the distance between the moments at which timed runs start: each moment costs wake-ups of the processor, of
// Go's threads and of its monitor, even with little work, and data that several checks need are read once. Checks of
// the same interval do not share a moment for long: see spread.
const grid = 10 * time.Second

// onGrid returns the time to the moment of the grid nearest to the end of next, but never one much later: a fault is not
// found later than the check's interval says.
func (e *Engine) onGrid(next time.Duration) time.Duration {
	if next < grid-grid/10 { // for example after a wake; the moment before its end would be over
		return next
	}
	since := time.Since(e.begun)
	until := (since + next).Round(grid) - since
	if until > next+max(grid/10, next/20) {
		until -= grid
	}
	return until
}

// spread keeps checks with the same interval from running at the same time.
func spread(every time.Duration) time.Duration {
	if every <= 0 {
		return time.Minute
	}
	return every - every/20 + rand.N(every/10+1)
}

// seldom is the shortest interval at which checks are spread: checks of five minutes and more are the most expensive.
const seldom = 5 * time.Minute

// phase returns the time from the first run to the second. All checks run at start; those that run seldom are then
// distributed over their interval, otherwise all of them would run in the same minute for hours.
func phase(every time.Duration) time.Duration {
	if every < seldom {
		return spread(every)
	}
	return every/5 + rand.N(every*4/5)
}
