// Package sli computes indicators from verdicts. It is pure. An indicator has no value below Enough samples: a ratio of
// few samples is misleading.
package sli

import (
	"cmp"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
)

// Enough is the minimum number of samples for a value.
const Enough = 20

// Windows are the windows of the indicators.
func Windows() map[string]time.Duration {
	return map[string]time.Duration{"5m": 5 * time.Minute, "1h": time.Hour, "1d": 24 * time.Hour, "7d": 7 * 24 * time.Hour}
}

// Act is a judged act.
type Act struct {
	Namespace, Owner, Node string
	Pool                   string // of the node; empty: unknown, or there is one pool
	Act                    record.Act
	Outcome                verdict.Outcome
	Class                  reason.Class
	Reason                 reason.Reason
	At                     time.Time // of its verdict; zero: not read
	Stages                 string    // their times, as stored; empty: not read
	Build                  int64     // ID of the software of the node; zero: not read
}

// Count is the number of acts with the same verdict.
type Count struct {
	Act     record.Act
	Outcome verdict.Outcome
	Class   reason.Class
	Reason  string
	N       int
}

// Indicator is the success of one kind of act.
type Indicator struct {
	Act record.Act `json:"act"`
	// Success is delivered / (delivered + missed by the system); null if there are too few samples.
	Success *float64 `json:"success"`
	// WithUser counts the misses of users as well.
	WithUser  *float64       `json:"successWithUser"`
	Samples   int            `json:"samples"` // delivered and missed by the system
	Delivered int            `json:"delivered"`
	Missed    int            `json:"missed"`
	System    int            `json:"missedBySystem"`
	User      int            `json:"missedByUser"`
	Excluded  int            `json:"excluded"`
	Unknown   int            `json:"unknown"`
	Total     int            `json:"total"`
	Reasons   map[string]int `json:"reasons,omitempty"` // of misses
}

// Add computes the indicators of all acts.
func Add(counts []Count) (all []Indicator) {
	for _, act := range []record.Act{record.Creation, record.Deletion, record.Refusal, record.Upgrade} {
		all = append(all, Of(counts, act))
	}
	return all
}

// Of computes the indicator of one act. A miss without a known class counts as the system's.
func Of(counts []Count, act record.Act) Indicator {
	i := Indicator{Act: act, Reasons: map[string]int{}}
	for _, c := range counts {
		switch {
		case c.Act != act:
			continue
		case c.Outcome == verdict.Delivered:
			i.Delivered += c.N
		case c.Outcome == verdict.Excluded:
			i.Excluded += c.N
		case c.Outcome == verdict.Unknown:
			i.Unknown += c.N
		case c.Outcome == verdict.Missed:
			i.Missed += c.N
			i.Reasons[c.Reason] += c.N
			if c.Class == reason.User {
				i.User += c.N
			}
		}
		i.Total += c.N
	}
	i.System = i.Missed - i.User
	i.Samples = i.Delivered + i.System
	i.Success, i.WithUser = Ratio(i.Delivered, i.Samples), Ratio(i.Delivered, i.Delivered+i.Missed)
	return i
}

// Ratio returns good / of; nil below Enough samples.
func Ratio(good, of int) *float64 {
	if of < Enough {
		return nil
	}
	return new(float64(good) / float64(of))
}

// Top is a name with its number.
type Top struct {
	Name string `json:"name"`
	N    int    `json:"n"`
}

// TopOf returns the most frequent names of things, at most n. Those without a name do not count.
func TopOf[T any](all []T, n int, name func(T) string) (tops []Top) {
	counts := map[string]int{}
	for _, one := range all {
		counts[name(one)]++
	}
	delete(counts, "")
	for name, count := range counts {
		tops = append(tops, Top{name, count})
	}
	slices.SortFunc(tops, func(a, b Top) int { return cmp.Or(cmp.Compare(b.N, a.N), cmp.Compare(a.Name, b.Name)) })
	return tops[:min(len(tops), n)]
}
