package finding

import "time"

// Stamp is a moment. Wall is for people and for other machines; Boot and Up are for arithmetic, because the wall clock
// may jump by years while CLOCK_BOOTTIME only ever goes on.
type Stamp struct {
	Wall time.Time     `json:"wall"`
	Boot string        `json:"boot"` // /proc/sys/kernel/random/boot_id
	Up   time.Duration `json:"up"`   // CLOCK_BOOTTIME: time since boot, sleep included
}

// IsZero reports whether s was never set.
func (s Stamp) IsZero() bool { return s.Boot == "" && s.Up == 0 && s.Wall.IsZero() }

// Since returns how long before s the earlier moment was. A moment of another boot is at least as old as this boot.
func (s Stamp) Since(earlier Stamp) time.Duration {
	if s.Boot != earlier.Boot {
		return s.Up
	}
	return s.Up - earlier.Up
}
