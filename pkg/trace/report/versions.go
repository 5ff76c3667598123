package report

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/trace/stage"
)

// A version is slower if its p90 is larger by this factor, and its ranks differ with that probability of error, among so
// many samples of each version.
const (
	slowerBy = 1.3
	chance   = 0.001
	enough   = 200
)

// Group identifies times that can be compared: those of one stage, with or without a pull, on nodes of one pool.
type Group struct {
	Component string   `json:"component"` // see components
	Stage     stage.ID `json:"stage"`
	Name      string   `json:"name"`
	Pool      string   `json:"pool,omitempty"`
	Cached    bool     `json:"cached"` // no image was pulled
}

// Version is the time of a stage with one version of a component, in seconds.
type Version struct {
	Group
	Version string   `json:"version"`
	Samples int      `json:"samples"`
	P50     *float64 `json:"p50"`
	P90     *float64 `json:"p90"`
	times   Histogram
}

// Slower is a version that is slower than another one.
type Slower struct {
	Group
	Version string  `json:"version"`
	Than    string  `json:"than"`
	P90     float64 `json:"p90"`
	ThanP90 float64 `json:"thanP90"`
	Samples [2]int  `json:"samples"`
}

// onNode are the stages for which the software of the node is responsible.
var onNode = []stage.ID{stage.Notice, stage.AdmitOnNode, stage.Mount, stage.Sandbox, stage.Pull, stage.Start, stage.Noticed, stage.StopSandbox,
	stage.Unmount, stage.ChangeSeen, stage.NewPull, stage.NewRun}

// components are those whose versions are compared, with the stages that each is responsible for.
var components = []struct {
	name    string
	version func(record.Build) string
	stages  []stage.ID
}{
	{"kubelet", func(b record.Build) string { return b.Kubelet }, onNode},
	{"runtime", func(b record.Build) string { return b.Runtime }, onNode},
	{"system", func(b record.Build) string { return b.System }, onNode},
	{"network", func(b record.Build) string { return b.Network }, []stage.ID{stage.Sandbox, stage.StopSandbox}},
	{"storage", func(b record.Build) string { return b.Storage }, []stage.ID{stage.Attach, stage.Mount, stage.Unmount}},
	{"scheduler", func(b record.Build) string { return b.Scheduler }, []stage.ID{stage.Schedule, stage.Preempt}},
	{"apiserver", func(b record.Build) string { return b.Apiserver }, []stage.ID{stage.Admit, stage.Reported, stage.Accepted, stage.Disappear}},
}

// Cell are the times of a stage in one hour on nodes of one build.
type Cell struct {
	Hour   int64
	Stage  stage.ID
	Cached bool // no image was pulled
	Build  record.Build
	Times  Histogram
}

// Compare returns the times by version, and the versions that are slower than others. If two components always change
// together, both are named: only nodes on which one of them is older can tell.
func Compare(cells []Cell) (versions []Version, slower []Slower) {
	type key struct {
		Group
		version string
	}
	sums := map[key]Histogram{}
	for _, c := range cells {
		for _, component := range components {
			version := component.version(c.Build)
			if version == "" || !slices.Contains(component.stages, c.Stage) {
				continue
			}
			k := key{Group{component.name, c.Stage, stage.Describe(c.Stage).Name, c.Build.Pool, c.Cached}, version}
			histogram(sums, k).Merge(c.Times)
		}
	}
	for k, h := range sums {
		if h.N() >= sli.Enough {
			versions = append(versions, Version{k.Group, k.version, h.N(), h.Quantile(0.5), h.Quantile(0.9), h})
		}
	}
	slices.SortFunc(versions, func(a, b Version) int {
		return cmp.Or(cmp.Compare(a.Component, b.Component), cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Stage, b.Stage),
			cmp.Compare(strconv.FormatBool(a.Cached), strconv.FormatBool(b.Cached)), cmp.Compare(a.Version, b.Version))
	})
	for _, a := range versions {
		for _, b := range versions {
			if a.Group == b.Group && a.Samples >= enough && b.Samples >= enough && *a.P90 >= slowerBy**b.P90 && larger(a.times, b.times) < chance {
				slower = append(slower, Slower{a.Group, a.Version, b.Version, *a.P90, *b.P90, [2]int{a.Samples, b.Samples}})
			}
		}
	}
	return versions, slower
}

// larger returns the probability that times of one distribution look as much larger as a's do: the test of Mann and Whitney
// for ranks with ties, which are the buckets.
func larger(a, b Histogram) float64 {
	m, n := float64(a.N()), float64(b.N())
	all := Histogram{}
	all.Merge(a)
	all.Merge(b)
	before, ranks, ties := 0.0, 0.0, 0.0
	for _, bucket := range slices.Sorted(maps.Keys(all)) {
		same := float64(all[bucket])
		ranks += float64(a[bucket]) * (before + (same+1)/2)
		ties += same * (same*same - 1)
		before += same
	}
	u := ranks - m*(m+1)/2
	total := m + n
	deviation := math.Sqrt(m * n / 12 * (total + 1 - ties/(total*(total-1))))
	if deviation == 0 {
		return 1
	}
	return math.Erfc((u-m*n/2)/deviation/math.Sqrt2) / 2
}

const (
	buckets   = 64
	perDouble = 4  // buckets in each doubling: the histogram covers 10 ms to 11 min
	smallest  = 10 // ms
)

// Histogram counts times in 64 logarithmic buckets, by bucket.
type Histogram map[int]int

// histogram returns the one of a key; at first, it is empty.
func histogram[K comparable](all map[K]Histogram, key K) Histogram {
	if all[key] == nil {
		all[key] = Histogram{}
	}
	return all[key]
}

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
