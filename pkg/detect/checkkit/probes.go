package checkkit

import (
	"context"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/probe"
)

// HungProbes has the probes that hang in the kernel and could not be killed, so that there is at most one for each
// subject.
type HungProbes map[string]probe.ProbeResult // by subject

// All probes the subjects that do not hang already, mostly in one child, and returns a result for each key. For a
// subject that hung in an earlier run it returns that result until its child has exited.
func (p HungProbes) All(ctx context.Context, h *host.Host, patience time.Duration, keys []string,
	requests []probe.ProbeRequest) map[string]probe.ProbeResult {
	for key := range p {
		p.Hangs(key) // which forgets one that has exited
	}
	results := make(map[string]probe.ProbeResult, len(keys))
	var askedKeys []string
	var asked []probe.ProbeRequest
	for i, key := range keys {
		if p.Hangs(key) {
			results[key] = p[key]
		} else {
			askedKeys, asked = append(askedKeys, key), append(asked, requests[i])
		}
	}
	for i, result := range h.Prober.All(ctx, patience, asked) {
		results[askedKeys[i]] = result
		if result.Ended != nil {
			p[askedKeys[i]] = result
		}
	}
	return results
}

// Hangs reports whether a probe of the subject is still in the kernel; if not, it forgets the probe.
func (p HungProbes) Hangs(key string) bool {
	old, known := p[key]
	if !known {
		return false
	}
	select {
	case <-old.Ended:
		delete(p, key)
		return false
	default:
		return true
	}
}
