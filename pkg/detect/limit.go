package detect

import (
	"cmp"
	"time"
)

// busySlack is what a check may be late because the machine is busy. A machine so overloaded that the agent waits for
// seconds is a fault to be told, not a reason to restart the one who tells it.
const busySlack = 30 * time.Second

// Limit returns how much time may pass between the ends of two looks of c while the engine works: its interval, its
// deadline, and what the engine adds to both. A look that hangs is given up and ends in time too; when nothing ends,
// the engine itself stands still.
func (c Check) Limit() time.Duration {
	every := cmp.Or(max(c.Every, 0), time.Minute)
	return every + every/20 + wakeGap + c.deadline() + abandonAfter + busySlack
}
