package identity

import (
	"crypto/sha256"
	"sync"
	"time"
)

// maxCached limits the memory of a cache: twice the nodes of the largest clusters.
const maxCached = 30_000

// cache keeps answers for a time. The zero value is ready.
type cache[T any] struct {
	mu  sync.Mutex // guards all
	all map[[sha256.Size]byte]cached[T]
}

type cached[T any] struct {
	value T
	until time.Time
}

func (c *cache[T]) get(key [sha256.Size]byte, now time.Time) (value T, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry, ok := c.all[key]
	if !ok || !now.Before(entry.until) {
		return value, false
	}
	return entry.value, true
}

// put stores an answer. If the cache is full, expired entries are dropped, or else all.
func (c *cache[T]) put(key [sha256.Size]byte, value T, now, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[[sha256.Size]byte]cached[T]{}
	}
	if len(c.all) >= maxCached {
		for key, entry := range c.all {
			if !now.Before(entry.until) {
				delete(c.all, key)
			}
		}
		if len(c.all) >= maxCached {
			clear(c.all)
		}
	}
	c.all[key] = cached[T]{value, until}
}
