package checkkit

import (
	"slices"
	"time"
)

// Window keeps the values of counters for a while, so that a rise covers the whole span and not a burst: a woken check
// runs at any distance from its last run. Times are since boot; a step of the wall clock has no effect.
type Window[V uint64 | float64] struct {
	Span time.Duration // length of the window
	// OneProcess means that all counters belong to one process, which creates a counter with its first count: a counter
	// that appears was 0 before, one that vanishes is ignored, and one that decreases means a new process. Without it a
	// counter that decreases or vanishes was reset on its own: a device was replaced, a module reloaded.
	OneProcess bool

	samples []sample[V] // the oldest first, at least sampleGap apart except for the last
}

type sample[V uint64 | float64] struct {
	at     time.Duration
	values map[string]V
}

const (
	sampleGap  = 15 * time.Second
	maxSamples = 64 // however long the span is
)

// Add records the counters at a time. It keeps values.
func (w *Window[V]) Add(at time.Duration, values map[string]V) {
	if n := len(w.samples); n > 0 && at < w.samples[n-1].at || w.OneProcess && w.decreased(values) {
		w.samples = nil
	}
	if !w.OneProcess {
		for _, s := range w.samples {
			for key, old := range s.values {
				if now, ok := values[key]; !ok || now < old {
					delete(s.values, key)
				}
			}
		}
	}
	// Keep one sample at or before the start of the span: the difference to it covers the whole span.
	for n := len(w.samples); n > 1 && (at-w.samples[1].at >= w.Span || n >= maxSamples); n = len(w.samples) {
		w.samples = slices.Delete(w.samples, 0, 1)
	}
	if n := len(w.samples); n > 1 && at-w.samples[n-2].at < sampleGap {
		w.samples = w.samples[:n-1] // of several runs within the gap only the last counts
	}
	w.samples = append(w.samples, sample[V]{at, values})
}

func (w *Window[V]) decreased(values map[string]V) bool {
	if len(w.samples) == 0 {
		return false
	}
	for key, old := range w.samples[len(w.samples)-1].values {
		if now, ok := values[key]; ok && now < old {
			return true
		}
	}
	return false
}

// Rise returns how much a counter rose within the span, and in which time. It is false if that is not known: after the
// first sample, or after a reset.
func (w *Window[V]) Rise(key string) (by V, in time.Duration, ok bool) {
	if len(w.samples) < 2 {
		return 0, 0, false
	}
	last := w.samples[len(w.samples)-1]
	now, ok := last.values[key]
	if !ok {
		return 0, 0, false
	}
	for _, s := range w.samples[:len(w.samples)-1] {
		if old, known := s.values[key]; known || w.OneProcess {
			return now - old, last.at - s.at, true
		}
	}
	return 0, 0, false
}

// Rate returns the rise of a counter within the span, and the rate per second. It is false if less time than least has
// passed: a burst is no rate.
func (w *Window[V]) Rate(key string, least time.Duration) (by V, perSecond float64, ok bool) {
	by, in, ok := w.Rise(key)
	if !ok || in < least || in <= 0 {
		return 0, 0, false
	}
	return by, float64(by) / in.Seconds(), true
}

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
