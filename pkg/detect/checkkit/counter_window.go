package checkkit

import (
	"time"
)

// CounterWindow keeps counters of some minutes, so that a rate is that of the whole time and not of a burst. The zero
// value is empty. Its size is bounded by what it spans.
type CounterWindow struct {
	samples []counterSample
}

type counterSample struct {
	at     time.Duration // uptime
	values []uint64
}

// maxOldSamples bounds a window, however often a check is woken.
const maxOldSamples = 64

// Add takes what the counters show now and returns how much each rose since the oldest sample in the window, and
// within which time. A counter that went back is another one (the machine was moved, the group made anew): the window
// begins again.
func (w *CounterWindow) Add(at, span time.Duration, values ...uint64) (rise []uint64, elapsed time.Duration) {
	if n := len(w.samples); n > 0 {
		last := w.samples[n-1]
		for i := range values {
			if i >= len(last.values) || values[i] < last.values[i] || at < last.at {
				w.samples = nil
				break
			}
		}
	}
	w.samples = append(w.samples, counterSample{at, values})
	for len(w.samples) > 2 && (at-w.samples[1].at >= span || len(w.samples) > maxOldSamples) {
		w.samples = w.samples[1:]
	}
	oldest := w.samples[0]
	rise = make([]uint64, len(values))
	for i := range values {
		rise[i] = values[i] - oldest.values[i]
	}
	return rise, at - oldest.at
}
