// Package share limits each sender's share of common resources, so that no sender can block the others. A sender is a
// key: an identity if known, otherwise the network of a request. The package refuses requests; it identifies no
// senders.
package share

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
)

// Of returns the key of a request without an identity: its address, for IPv6 the subscriber's network.
func Of(r *http.Request) string { return ofAddress(r.RemoteAddr) }

func ofAddress(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = remote
	}
	address, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	if address = address.Unmap(); address.Is6() {
		if network, err := address.WithZone("").Prefix(64); err == nil {
			return network.String()
		}
	}
	return address.String()
}

// Amounts limits the amounts in use at the same time: per key, and in total.
type Amounts struct {
	each int64
	all  *semaphore.Weighted

	mu   sync.Mutex // guards used
	used map[string]int64
}

// NewAmounts returns limits per key and in total.
func NewAmounts(each, all int64) *Amounts {
	return &Amounts{each: each, all: semaphore.NewWeighted(all), used: map[string]int64{}}
}

// Take takes n, if the limits of the key and in total allow it now.
func (a *Amounts) Take(key string, n int64) bool {
	if !a.own(key, n) {
		return false
	}
	if !a.all.TryAcquire(n) {
		a.give(key, n)
		return false
	}
	return true
}

// Wait is Take, but it waits for the release of other keys' amounts until ctx ends.
func (a *Amounts) Wait(ctx context.Context, key string, n int64) bool {
	if !a.own(key, n) {
		return false
	}
	if a.all.Acquire(ctx, n) != nil {
		a.give(key, n)
		return false
	}
	return true
}

// Give releases n.
func (a *Amounts) Give(key string, n int64) {
	if n > 0 {
		a.all.Release(n)
		a.give(key, n)
	}
}

// Used returns the total amount in use.
func (a *Amounts) Used() (n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, own := range a.used {
		n += own
	}
	return n
}

func (a *Amounts) own(key string, n int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.used[key]+n > a.each {
		return false
	}
	a.used[key] += n
	return true
}

func (a *Amounts) give(key string, n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.used[key] -= n; a.used[key] <= 0 {
		delete(a.used, key)
	}
}

// full reports whether a key uses all of its own limit.
func (a *Amounts) full(key string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used[key] >= a.each
}

// maxKeys limits the memory of Rates.
const maxKeys = 50_000

// Rates limits the rate of each of many keys.
type Rates struct {
	rate  float64 // per second
	burst int

	mu       sync.Mutex // guards limiters
	limiters map[string]*rate.Limiter
}

// NewRates returns a limit for each key.
func NewRates(limit float64, burst int) *Rates {
	return &Rates{rate: limit, burst: burst, limiters: map[string]*rate.Limiter{}}
}

// Take takes n, if the key's limit allows it now.
func (r *Rates) Take(key string, now time.Time, n int) bool { return r.of(key, now).AllowN(now, n) }

// Wait takes n, at most a burst, and waits until the key's limit allows it.
func (r *Rates) Wait(ctx context.Context, key string, n int) error {
	return r.of(key, time.Now()).WaitN(ctx, min(n, r.burst))
}

func (r *Rates) of(key string, now time.Time) *rate.Limiter {
	r.mu.Lock()
	defer r.mu.Unlock()
	limiter := r.limiters[key]
	if limiter == nil {
		if len(r.limiters) >= maxKeys {
			r.forget(now)
		}
		limiter = rate.NewLimiter(rate.Limit(r.rate), r.burst)
		r.limiters[key] = limiter
	}
	return limiter
}

// forget drops inactive keys, or else all.
func (r *Rates) forget(now time.Time) {
	for key, limiter := range r.limiters {
		if limiter.TokensAt(now) >= float64(r.burst) {
			delete(r.limiters, key)
		}
	}
	if len(r.limiters) >= maxKeys {
		clear(r.limiters)
	}
}
