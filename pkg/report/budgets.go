package report

import (
	"time"

	"golang.org/x/time/rate"
)

// Budgets holds one token bucket for each key, so that a storm of one key takes no tokens from another. It is pure: the
// caller passes the time. It is not safe for concurrent use.
type Budgets struct {
	burst   int
	every   time.Duration
	buckets map[string]*rate.Limiter
	swept   time.Time
	sweepAt int // number of buckets at which full ones are dropped, which has no effect on the budgets
}

// minSweep is the lowest sweepAt. A sweep doubles it for the buckets that it leaves, so that a storm of new keys does not
// look at all of them for each.
const minSweep = 1000

// NewBudgets returns budgets of burst tokens each; one token is refilled in every span.
func NewBudgets(burst int, every time.Duration) *Budgets {
	return &Budgets{burst: burst, every: every, buckets: map[string]*rate.Limiter{}, sweepAt: minSweep}
}

// Take takes a token of key, and reports whether there was one.
func (b *Budgets) Take(key string, now time.Time) bool {
	bucket, ok := b.buckets[key]
	if !ok {
		b.forgetFull(now)
		bucket = rate.NewLimiter(rate.Every(b.every), b.burst)
		b.buckets[key] = bucket
	}
	return bucket.AllowN(now, 1)
}

// Next returns when there will be a token of key.
func (b *Budgets) Next(key string, now time.Time) time.Time {
	bucket, ok := b.buckets[key]
	if !ok {
		return now
	}
	missing := 1 - bucket.TokensAt(now)
	if missing <= 0 {
		return now
	}
	// A microsecond more, so that rounding does not bring the caller back a moment too early.
	return now.Add(time.Duration(missing*float64(b.every)) + time.Microsecond)
}

func (b *Budgets) forgetFull(now time.Time) {
	if len(b.buckets) < minSweep || len(b.buckets) < b.sweepAt && now.Sub(b.swept) < time.Duration(b.burst)*b.every {
		return
	}
	b.swept = now
	for key, bucket := range b.buckets {
		if bucket.TokensAt(now) >= float64(b.burst) {
			delete(b.buckets, key)
		}
	}
	b.sweepAt = max(minSweep, 2*len(b.buckets))
}
