package record

import "time"

// coarse is the resolution of Kubernetes' own timestamps.
const coarse = time.Second

// unbounded stands for an arbitrarily distant past.
const unbounded = 10 * 365 * 24 * time.Hour

// Span is a duration with its bounds: it lies between Low and High. Low is never negative.
type Span struct {
	Low, High time.Duration
}

// Middle returns the best estimate.
func (s Span) Middle() time.Duration {
	if s.High >= unbounded/2 {
		return s.Low
	}
	return (s.Low + s.High) / 2
}

// Uncertainty is the maximum distance of the true value from Middle.
func (s Span) Uncertainty() time.Duration {
	if s.High >= unbounded/2 {
		return s.High
	}
	return (s.High - s.Low) / 2
}

// ours returns the bounds of a mark in our clock.
func (t *Timeline) ours(m Mark) (low, high time.Time) {
	if !m.Late {
		return m.Arrival, m.Arrival
	}
	skew, measured := t.Skews[m.Source]
	if m.Time.IsZero() || m.Source == Own || !measured {
		return m.Arrival.Add(-unbounded), m.Arrival
	}
	low = m.Time.Add(skew - coarse)
	if high = m.Time.Add(skew + coarse); high.After(m.Arrival) {
		high = m.Arrival
	}
	if low.After(high) {
		low = high
	}
	return low, high
}

// ByOurs returns the time from one mark to another by our own clock: verdicts depend on it.
func (t *Timeline) ByOurs(from, to Mark) Span {
	fromLow, fromHigh := t.ours(from)
	toLow, toHigh := t.ours(to)
	return Span{max(0, toLow.Sub(fromHigh)), max(0, toHigh.Sub(fromLow))}
}

// Between returns the time from one mark to another. It uses the marks' clock if they share one, since delays on the
// way to us do not affect it; otherwise ours.
func (t *Timeline) Between(from, to Mark) Span {
	if from.Source != to.Source || from.Source == Own || from.Time.IsZero() || to.Time.IsZero() {
		return t.ByOurs(from, to)
	}
	d, resolution := to.Time.Sub(from.Time), time.Duration(0)
	if from.Time.Nanosecond() == 0 || to.Time.Nanosecond() == 0 {
		resolution = coarse
	}
	return Span{max(0, d-resolution), max(0, d+resolution)}
}

// Passed returns the time from a mark to a moment of our clock.
func (t *Timeline) Passed(from Mark, now time.Time) Span {
	return t.ByOurs(from, Mark{Source: Own, Arrival: now})
}
