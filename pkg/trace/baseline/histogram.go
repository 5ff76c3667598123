// Package baseline describes how long a stage usually takes, and compares versions of the component that is responsible
// for it. It is pure.
package baseline

import (
	"math"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/trace/sli"
)

const (
	buckets   = 64
	perDouble = 4  // buckets in each doubling: the histogram covers 10 ms to 11 min
	smallest  = 10 // ms
)

// Histogram counts times in 64 logarithmic buckets, by bucket.
type Histogram map[int]int

// Add adds a time in milliseconds.
func (h Histogram) Add(milliseconds int64) {
	b := int(math.Floor(perDouble * math.Log2(max(float64(milliseconds), smallest)/smallest)))
	h[min(b, buckets-1)]++
}

// Merge adds another histogram.
func (h Histogram) Merge(other Histogram) {
	for b, n := range other {
		h[b] += n
	}
}

// N is the number of times.
func (h Histogram) N() (n int) {
	for _, c := range h {
		n += c
	}
	return n
}

// Quantile returns the time in seconds below which a share of the times lies; nil below sli.Enough times. It interpolates
// between the middles of the buckets: Kubernetes' times are whole seconds, so many of them are equal, and a quantile that
// jumps from one to the next would exaggerate a small difference.
func (h Histogram) Quantile(share float64) *float64 {
	all, below := h.N(), 0
	if all < sli.Enough {
		return nil
	}
	at, position, known := 0.0, 0.0, false
	for b := range buckets {
		if h[b] == 0 {
			continue
		}
		middle := (float64(b) + 0.5) / perDouble
		next := (float64(below) + float64(h[b])/2) / float64(all)
		below += h[b]
		switch {
		case next < share:
			at, position, known = middle, next, true
			continue
		case known:
			at += (middle - at) * (share - position) / (next - position)
		default:
			at = middle
		}
		break
	}
	return new(math.Exp2(at) * smallest / 1000)
}

// Times parses the stored times of stages: id=milliseconds, separated by spaces. visit gets each stage.
func Times(stages string, visit func(id string, milliseconds int64)) {
	for part := range strings.SplitSeq(stages, " ") {
		if id, text, ok := strings.Cut(part, "="); ok {
			if n, err := strconv.ParseInt(text, 10, 64); err == nil {
				visit(id, n)
			}
		}
	}
}
