package report

import (
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Backoff is how long a sink waits after a write that failed: for as long as the server asks (Retry-After), and
// then a random part of a span that doubles up to Max (full jitter), so that ten thousand agents do not come back at
// once. The zero value works. It is not safe for concurrent use.
type Backoff struct {
	First time.Duration  // the first span; zero means one second
	Max   time.Duration  // the longest span; zero means five minutes
	Rand  func() float64 // in [0,1); nil means math/rand/v2

	failures int
}

const (
	firstBackoff = time.Second
	maxBackoff   = 5 * time.Minute
	// maxRetryAfter bounds what a server may ask for, so that one absurd answer does not silence a node for a day.
	maxRetryAfter = time.Hour
)

// Failed records a failure and returns how long to wait before the next attempt.
func (b *Backoff) Failed(err error) time.Duration {
	span := orDefault(b.Max, maxBackoff)
	first := orDefault(b.First, firstBackoff)
	// Thirty doublings of any sensible first span are beyond any sensible Max; more would overflow.
	if b.failures < 30 && first<<b.failures < span {
		span = first << b.failures
	}
	b.failures++
	return RetryAfter(err) + Jitter(span, b.Rand)
}

// Succeeded makes the next failure the first one again.
func (b *Backoff) Succeeded() { b.failures = 0 }

// Failures returns how many attempts in a row have failed.
func (b *Backoff) Failures() int { return b.failures }

// RetryAfter returns how long the apiserver asks its client to wait, at most an hour; zero where it does not.
func RetryAfter(err error) time.Duration {
	seconds, ok := apierrors.SuggestsClientDelay(err)
	if !ok || seconds <= 0 {
		return 0
	}
	if seconds > int(maxRetryAfter/time.Second) {
		return maxRetryAfter
	}
	return time.Duration(seconds) * time.Second
}

// Jitter returns a random part of span. A nil source means math/rand/v2.
func Jitter(span time.Duration, source func() float64) time.Duration {
	if source == nil {
		source = rand.Float64
	}
	return time.Duration(source() * float64(span))
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return otherwise
}

// Earliest returns the earliest of the moments that are set, zero if none is.
func Earliest(moments ...time.Time) time.Time {
	var first time.Time
	for _, m := range moments {
		if !m.IsZero() && (first.IsZero() || m.Before(first)) {
			first = m
		}
	}
	return first
}
