package checkkit

import (
	"time"
)

// RecentCount is a fault that is told of for a while after it was last seen.
type RecentCount struct {
	at    time.Duration // uptime; 0 for never
	Count uint64        // what was counted since it is told of
}

// Add counts what came at a time since boot.
func (t *RecentCount) Add(count uint64, now time.Duration) { t.at, t.Count = now, t.Count+count }

// Recent reports whether something came within the last keep, and forgets what is older.
func (t *RecentCount) Recent(now, keep time.Duration) bool {
	if t.at == 0 || now-t.at > keep {
		*t = RecentCount{}
		return false
	}
	return true
}
