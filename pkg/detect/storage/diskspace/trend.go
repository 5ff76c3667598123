package diskspace

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	spaceTrendKey = "disk-space/history"
	// spaceEvery and spaceSamples make a history of six hours, as in the rules of the node mixin.
	spaceEvery   = 10 * time.Minute
	spaceSamples = 37
	// spaceLatest is the end of the history, which must shrink too: a filesystem that stopped growing will not become
	// full.
	spaceLatest = time.Hour
	// spaceFilesystems bounds the history: about 1 KB each in the state of the agent, those of the node first.
	spaceFilesystems = 64
)

// spaceTrend is the free space of each filesystem in the last hours of this boot.
type spaceTrend struct {
	Boot    string                   `json:"boot"`
	Samples map[string][]spaceSample `json:"samples"` // by spaceKey, the oldest first
}

// spaceSample is the free space at one moment: seconds since boot, bytes.
type spaceSample [2]int64

// loadSpaceTrend reads the history that an earlier agent of this boot saved, without malformed samples.
func loadSpaceTrend(saved detect.Saved[spaceTrend], now finding.Timestamp) *spaceTrend {
	fresh := &spaceTrend{Boot: now.Boot, Samples: map[string][]spaceSample{}}
	kept, _ := saved.Load(func(t spaceTrend) bool {
		return t.Boot == now.Boot && len(t.Samples) <= spaceFilesystems
	})
	for key, samples := range kept.Samples {
		inOrder := slices.IsSortedFunc(samples, func(a, b spaceSample) int { return cmp.Compare(a[0], b[0]) })
		if len(samples) == 0 || len(samples) > spaceSamples || !inOrder || samples[0][0] < 0 ||
			samples[len(samples)-1][0] > int64(now.SinceBoot.Seconds()) {
			continue
		}
		fresh.Samples[key] = samples
	}
	return fresh
}

// spaceKey identifies a filesystem across restarts of the agent.
func (s space) spaceKey() string { return s.Principal.FSType + " " + s.Principal.Point }

// sample records the free space, every ten minutes, and drops filesystems that are gone.
func (t *spaceTrend) sample(now finding.Timestamp, spaces []space) (changed bool) {
	up := int64(now.SinceBoot.Seconds())
	mounted := make(map[string]bool)
	byWeight := slices.Clone(spaces)
	slices.SortStableFunc(byWeight, func(a, b space) int { return len(b.holds) - len(a.holds) })
	for _, s := range byWeight {
		key := s.spaceKey()
		old := t.Samples[key]
		if len(old) > 0 && up-old[len(old)-1][0] < int64(spaceEvery.Seconds()) {
			mounted[key] = true
			continue
		}
		if len(old) == 0 && len(t.Samples) >= spaceFilesystems {
			continue
		}
		old = append(old, spaceSample{up, int64(min(s.answer.FreeBytes, 1<<62))})
		t.Samples[key] = old[max(0, len(old)-spaceSamples):]
		mounted[key], changed = true, true
	}
	// A filesystem that did not answer keeps its history for a while.
	maps.DeleteFunc(t.Samples, func(key string, samples []spaceSample) bool {
		return !mounted[key] && up-samples[len(samples)-1][0] > int64((spaceEvery*spaceSamples).Seconds())
	})
	return changed
}

// fullIn predicts in which time a filesystem will be full. It is 0 if the history is shorter than an hour, or if the
// space does not shrink over the whole history and over its last hour. The slower of the two rates counts.
func (t *spaceTrend) fullIn(s space, up time.Duration) time.Duration {
	samples := append(slices.Clone(t.Samples[s.spaceKey()]),
		spaceSample{int64(up.Seconds()), int64(min(s.answer.FreeBytes, 1<<62))})
	from := int64((up - spaceLatest - spaceEvery/2).Seconds())
	latest := samples[slices.IndexFunc(samples, func(x spaceSample) bool { return x[0] >= from }):]
	if time.Duration(samples[len(samples)-1][0]-samples[0][0])*time.Second < spaceLatest || len(latest) < 4 {
		return 0
	}
	rate := max(slope(samples), slope(latest)) // bytes per second, below 0 if it shrinks
	const century = 100 * 365 * 24 * 3600
	if rate >= 0 || float64(s.answer.FreeBytes) > -rate*century {
		return 0
	}
	return max(time.Duration(float64(s.answer.FreeBytes)/-rate*float64(time.Second)), time.Second)
}

// slope is that of the least-squares line, in bytes per second.
func slope(samples []spaceSample) float64 {
	var sumX, sumY, sumXX, sumXY float64
	for _, s := range samples {
		x, y := float64(s[0]-samples[0][0]), float64(s[1]-samples[0][1]) // small values, to avoid rounding errors
		sumX, sumY, sumXX, sumXY = sumX+x, sumY+y, sumXX+x*x, sumXY+x*y
	}
	n := float64(len(samples))
	if below := n*sumXX - sumX*sumX; below > 0 {
		return (n*sumXY - sumX*sumY) / below
	}
	return 0
}
