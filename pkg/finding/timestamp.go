package finding

import (
	"time"
)

// Timestamp is a moment. Wall is for display and for other machines; Boot and SinceBoot are for arithmetic, because the
// wall clock may jump by years while CLOCK_BOOTTIME only increases.
type Timestamp struct {
	Wall      time.Time     `json:"wall"`
	Boot      string        `json:"boot"` // /proc/sys/kernel/random/boot_id
	SinceBoot time.Duration `json:"up"`   // CLOCK_BOOTTIME: time since boot, sleep included
}

// IsZero reports whether s was never set.
func (s Timestamp) IsZero() bool { return s.Boot == "" && s.SinceBoot == 0 && s.Wall.IsZero() }

// Since returns the time from earlier to s. A moment of another boot is at least as old as this boot.
func (s Timestamp) Since(earlier Timestamp) time.Duration {
	if s.Boot != earlier.Boot {
		return s.SinceBoot
	}
	return s.SinceBoot - earlier.SinceBoot
}
