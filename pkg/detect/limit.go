package detect

import (
	"cmp"
	"time"
)

// busySlack is how late a check may be on a busy machine. A machine so overloaded that the agent waits for seconds is a
// fault to report, but no reason to restart the agent.
const busySlack = 30 * time.Second

// Limit returns how much time may pass between the ends of two runs of c while the engine works: its interval, its
// deadline, and the engine's overhead. A hung run is abandoned, and so ends in time too; if no run ends, the engine
// itself is stuck.
func (c Check) Limit() time.Duration {
	every := cmp.Or(max(c.Every, 0), time.Minute)
	return every + every/20 + wakeGap + c.deadline() + abandonAfter + busySlack
}
