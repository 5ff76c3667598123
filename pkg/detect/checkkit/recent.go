package checkkit

import (
	"time"
)

// RecentCount is a fault reported for a while after its last occurrence.
type RecentCount struct {
	at    time.Duration // uptime; 0 for never
	Count uint64        // occurrences since it is reported
}

// Add counts occurrences at a time since boot.
func (t *RecentCount) Add(count uint64, now time.Duration) { t.at, t.Count = now, t.Count+count }

// Recent reports whether there was an occurrence within the last keep, and forgets older ones.
func (t *RecentCount) Recent(now, keep time.Duration) bool {
	if t.at == 0 || now-t.at > keep {
		*t = RecentCount{}
		return false
	}
	return true
}
