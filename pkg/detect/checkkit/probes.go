package checkkit

import (
	"context"
	"maps"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// HungProbes remembers the probes that hang in the kernel and could not be killed, so that there is never more than one
// for each subject: a second one would only hang beside it.
type HungProbes map[string]probe.ProbeResult // by what the user calls the subject

// All asks those that do not hang already, as a rule by one child, and returns a result for each key. What hung in an
// earlier look is returned as it was until the kernel lets its child go.
func (p HungProbes) All(ctx context.Context, h *host.Host, patience time.Duration, keys []string,
	requests []probe.ProbeRequest) map[string]probe.ProbeResult {
	for key := range p {
		p.Hangs(key) // which forgets it where it does not, also when nobody asks for it any more
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

// ForgetUnmounted deletes doubts about filesystems that were unmounted between the reading of the mount table and the
// question to them: on a busy node one volume or another always is.
func ForgetUnmounted(h *host.Host, doubts map[finding.Subject]error) {
	if len(doubts) == 0 {
		return
	}
	mounts, err := mount.Table(h)
	if err != nil {
		return // the doubts stand
	}
	there := make(map[string]bool, len(mounts))
	for _, m := range mounts {
		there[m.Point] = true
	}
	maps.DeleteFunc(doubts, func(s finding.Subject, _ error) bool { return !there[s.Name] })
}

// Hangs reports whether a probe of the subject is still in the kernel, and forgets one that is not.
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
