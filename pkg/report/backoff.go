package report

import (
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Backoff is how long a sink waits after a failed write: as long as the server asks (Retry-After), plus a random part
// of a span that doubles up to five minutes (full jitter), so that ten thousand agents do not return at once. The zero
// value works. It is not safe for concurrent use.
type Backoff struct {
	Rand func() float64 // in [0,1); nil means math/rand/v2

	failures int
}

const (
	firstBackoff = time.Second
	maxBackoff   = 5 * time.Minute
	// maxRetryAfter bounds the wait that a server may ask for, so that one absurd answer does not silence a node for a
	// day.
	maxRetryAfter = time.Hour
)

// Failed records a failure and returns how long to wait before the next attempt.
func (b *Backoff) Failed(err error) time.Duration {
	span := maxBackoff
	if b.failures < 30 { // more doublings would overflow
		span = min(span, firstBackoff<<b.failures)
	}
	b.failures++
	return RetryAfter(err) + Jitter(span, b.Rand)
}

// Succeeded makes the next failure the first one again.
func (b *Backoff) Succeeded() { b.failures = 0 }

// Failures returns how many attempts in a row have failed.
func (b *Backoff) Failures() int { return b.failures }

// RetryAfter returns how long the apiserver asks its client to wait, at most an hour; zero if it does not ask.
func RetryAfter(err error) time.Duration {
	seconds, ok := apierrors.SuggestsClientDelay(err)
	if !ok || seconds <= 0 {
		return 0
	}
	return time.Duration(min(seconds, int(maxRetryAfter/time.Second))) * time.Second
}

// Jitter returns a random part of span. A nil source means math/rand/v2.
func Jitter(span time.Duration, source func() float64) time.Duration {
	if source == nil {
		source = rand.Float64
	}
	return time.Duration(source() * float64(span))
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
