package messages

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/trace/health"
	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/store"
)

const (
	maxGroups = 200 // reasons and nodes of a minute with an event of their own
	other     = "other"
)

// Misses returns the events about the misses of one minute: one for each reason of the system and node, by the reason
// known at the deadline. The smallest groups beyond maxGroups share one event. The same verdicts give the same events with
// the same IDs, so that the event center keeps each once, however often tracecenter starts.
func Misses(cluster string, minute time.Time, misses []store.Row) (events []cloudevents.Event, err error) {
	misses = slices.DeleteFunc(slices.Clone(misses), func(r store.Row) bool { return r.Class == string(reason.User) })
	slices.SortFunc(misses, func(a, b store.Row) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Key, b.Key)) })
	groups := map[[2]string]*event.Missed{}
	for _, r := range misses {
		key := [2]string{r.First, r.Node}
		if groups[key] == nil {
			groups[key] = &event.Missed{Reason: r.First, Node: r.Node, Minute: minute.UTC()}
		}
		add(groups[key], 1, event.MissedPod{Act: string(r.Act), Namespace: r.Namespace, Name: r.Name, UID: r.UID})
	}
	sorted := slices.SortedFunc(maps.Values(groups), func(a, b *event.Missed) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Node, b.Node))
	})
	if len(sorted) > maxGroups {
		rest := &event.Missed{Reason: other, Minute: minute.UTC()}
		for _, m := range sorted[maxGroups:] {
			add(rest, m.Count, m.Examples...)
		}
		sorted = append(sorted[:maxGroups], rest)
	}
	for _, m := range sorted {
		m.Message = fmt.Sprintf("%d acts of pods were late: %s", m.Count, m.Reason)
		e, err := event.OfDetector(event.PodMissed, cluster, m.Node, detector, id(cluster, minute.UTC().Format(time.RFC3339), m.Reason, m.Node),
			minute.Add(time.Minute).UTC(), *m)
		if err != nil {
			return nil, err
		}
		events = append(events, e)
	}
	return events, nil
}

func add(to *event.Missed, n int, examples ...event.MissedPod) {
	to.Count += n
	to.Examples = append(to.Examples, examples[:min(len(examples), event.MaxExamples-len(to.Examples))]...)
}

func id(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:16])
}

// The rules with a level.
const (
	Health        = "Health"
	BurnsFast     = "DeliveryBudgetBurnsFast"
	Burns         = "DeliveryBudgetBurns"
	NodesFailPods = "NodesFailPods" // so many nodes of a pool fail their pods that the fault is the cluster's
)

// Rule is the present level of a rule.
type Rule struct {
	Name   string
	Level  health.Level
	Causes []string
}

// Sent is the state of the announcements: a program that starts continues with it.
type Sent struct {
	Minute time.Time        `json:"minute"` // the next one whose misses are announced
	Levels map[string]Level `json:"levels"` // by rule; Healthy unless named
}

// Level is the announced level of a rule.
type Level struct {
	Level health.Level `json:"level"`
	AsOf  time.Time    `json:"asof"`
}

const (
	maxCauses = 10
	maxCause  = 300 // bytes
)

// Changes returns the events about the rules whose level has changed, and the state after them.
func (s Sent) Changes(cluster string, rules []Rule, now time.Time) (events []cloudevents.Event, after Sent, err error) {
	after = Sent{s.Minute, map[string]Level{}}
	maps.Copy(after.Levels, s.Levels)
	for _, r := range rules {
		before := s.Levels[r.Name]
		if before.Level = cmp.Or(before.Level, health.Healthy); r.Level == before.Level {
			continue
		}
		var causes []string
		for _, cause := range r.Causes[:min(len(r.Causes), maxCauses)] {
			causes = append(causes, event.Brief(cause, maxCause))
		}
		e, err := event.OfDetector(event.SLOState, cluster, "", detector,
			id(cluster, r.Name, string(before.Level), before.AsOf.UTC().Format(time.RFC3339Nano), string(r.Level)), now.UTC(),
			event.SLO{Rule: r.Name, Cluster: cluster, Before: string(before.Level), After: string(r.Level), AsOf: now.UTC(),
				Causes: causes, Message: strings.Join(append([]string{r.Name + ": " + string(r.Level)}, causes...), "; ")})
		if err != nil {
			return nil, s, err
		}
		events = append(events, e)
		after.Levels[r.Name] = Level{r.Level, now.UTC()}
	}
	return events, after, nil
}
