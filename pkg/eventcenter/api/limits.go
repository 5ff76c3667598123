package api

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// maxSources bounds the memory of rates.
const maxSources = 50_000

// rates are the limits of events a second: of each source, and of all.
type rates struct {
	limits Limits
	all    *rate.Limiter

	mu      sync.Mutex // guards sources
	sources map[string]*rate.Limiter
}

func newRates(l Limits) *rates {
	return &rates{limits: l, all: rate.NewLimiter(rate.Limit(l.Rate), l.Burst), sources: map[string]*rate.Limiter{}}
}

// ofSource takes n events from what a source may send.
func (r *rates) ofSource(source string, now time.Time, n int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	limiter := r.sources[source]
	if limiter == nil {
		if len(r.sources) >= maxSources {
			r.forget(now)
		}
		limiter = rate.NewLimiter(rate.Limit(r.limits.SourceRate), r.limits.SourceBurst)
		r.sources[source] = limiter
	}
	return limiter.AllowN(now, n)
}

// forget drops the sources that have sent nothing lately, or else all.
func (r *rates) forget(now time.Time) {
	for source, limiter := range r.sources {
		if limiter.TokensAt(now) >= float64(r.limits.SourceBurst) {
			delete(r.sources, source)
		}
	}
	if len(r.sources) >= maxSources {
		clear(r.sources)
	}
}

// depth returns how deep arrays and objects are nested in a JSON text.
func depth(text []byte) (deepest int) {
	now, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			now++
			deepest = max(deepest, now)
		case c == '}' || c == ']':
			now--
		}
	}
	return deepest
}
