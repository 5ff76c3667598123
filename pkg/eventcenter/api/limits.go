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
	all     *rate.Limiter
	sources *perSource
}

func newRates(l Limits) *rates {
	return &rates{rate.NewLimiter(rate.Limit(l.Rate), l.Burst), newPerSource(l.SourceRate, l.SourceBurst)}
}

// perSource is a limit of each of many.
type perSource struct {
	rate  float64 // a second
	burst int

	mu       sync.Mutex // guards limiters
	limiters map[string]*rate.Limiter
}

func newPerSource(limit float64, burst int) *perSource {
	return &perSource{rate: limit, burst: burst, limiters: map[string]*rate.Limiter{}}
}

// take takes n from what a source may do.
func (p *perSource) take(source string, now time.Time, n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	limiter := p.limiters[source]
	if limiter == nil {
		if len(p.limiters) >= maxSources {
			p.forget(now)
		}
		limiter = rate.NewLimiter(rate.Limit(p.rate), p.burst)
		p.limiters[source] = limiter
	}
	return limiter.AllowN(now, n)
}

// forget drops the sources that have sent nothing lately, or else all.
func (p *perSource) forget(now time.Time) {
	for source, limiter := range p.limiters {
		if limiter.TokensAt(now) >= float64(p.burst) {
			delete(p.limiters, source)
		}
	}
	if len(p.limiters) >= maxSources {
		clear(p.limiters)
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
