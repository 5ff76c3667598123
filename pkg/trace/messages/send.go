// Package messages speaks with an event center: it sends faults of nodes, misses and levels, and reads what the agents report
// about pods.
package messages

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/trace/health"
	"github.com/nodeagent/nodeagent/pkg/trace/nodefault"
	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/store"
	"github.com/nodeagent/nodeagent/pkg/web/client"
)

const (
	detector = "tracecenter" // the name of tracecenter as a detector
	check    = "pod-delivery"
	repeat   = 10 * time.Minute // between reports of an active fault
	limit    = 10 * time.Second // for an answer
	maxWait  = 10_000           // events that wait: one for each fault, and those queued
)

// Sender reports faults of nodes and other events to an event center, as a detector beside the agents. Without repetition,
// a fault ends there by itself after two hours. It is safe for concurrent use.
type Sender struct {
	Center  *client.Client
	Cluster string
	Log     *slog.Logger

	mu      sync.Mutex // guards the fields below
	waiting map[[2]string]cloudevents.Event
	sent    map[[2]string]time.Time // of active faults
}

// NewSender returns a sender of the faults of a cluster's nodes.
func NewSender(center *client.Client, cluster string, log *slog.Logger) *Sender {
	return &Sender{Center: center, Cluster: cluster, Log: log, waiting: map[[2]string]cloudevents.Event{}, sent: map[[2]string]time.Time{}}
}

// Report queues what has changed. Of each fault only the newest state waits.
func (s *Sender) Report(active, ended []nodefault.Fault, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, f := range slices.Concat(active, ended) {
		key := [2]string{f.Node, string(f.Kind)}
		kind := event.FaultRaised
		switch last, known := s.sent[key]; {
		case i >= len(active):
			kind = event.FaultCleared
			delete(s.sent, key)
		case known && now.Sub(last) < repeat:
			continue
		case known:
			kind = event.FaultUpdated
		}
		if _, replaces := s.waiting[key]; !replaces && len(s.waiting) >= maxWait {
			return fmt.Errorf("report %s of node %s: %d reports wait already", f.Kind, f.Node, maxWait)
		}
		e, err := event.OfDetector(kind, s.Cluster, f.Node, detector, rand.Text(), now, event.Fault{Check: check, Reason: string(f.Kind),
			Severity: finding.Warning, Subject: finding.Subject{Kind: "Node", Name: f.Node},
			Message:    fmt.Sprintf("%d of %d pods were not delivered in time in %v, for reasons of this node", f.Misses, f.Acts, nodefault.Window),
			Facts:      map[string]string{"misses": strconv.Itoa(f.Misses), "pods": strconv.Itoa(f.Acts), "othersShare": fmt.Sprintf("%.4f", f.Others)},
			ObservedAt: f.Last, RaisedAt: f.Since, TTLSeconds: int(nodefault.Forgotten / time.Second)})
		if err != nil {
			return err
		}
		if s.waiting[key] = e; kind != event.FaultCleared {
			s.sent[key] = now
		}
	}
	return nil
}

// Queue queues events, which are sent once each, in the order of their times. It queues all or none: none if too many wait.
func (s *Sender) Queue(events []cloudevents.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting)+len(events) > maxWait/2 { // the rest is for faults
		return fmt.Errorf("%d events wait already", len(s.waiting))
	}
	for _, e := range events {
		s.waiting[[2]string{e.ID()}] = e
	}
	return nil
}

// Idle reports whether no event waits.
func (s *Sender) Idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting) == 0
}

// Send sends what waits. It must be called regularly: an event that the center does not take is sent again, with the same ID.
func (s *Sender) Send(ctx context.Context, _ time.Time) error {
	s.mu.Lock()
	waiting := maps.Clone(s.waiting)
	s.mu.Unlock()
	var forbidden error // to speak for the cluster: an event center of an earlier version forbids it, and takes the faults of nodes
	for _, key := range slices.SortedFunc(maps.Keys(waiting), func(a, b [2]string) int {
		return cmp.Or(waiting[a].Time().Compare(waiting[b].Time()), strings.Compare(waiting[a].ID(), waiting[b].ID()))
	}) {
		e := waiting[key]
		_, node, _, _ := event.ReadSource(e.Source())
		if node == "" && forbidden != nil {
			continue
		}
		err := s.post(ctx, e)
		refused, ok := errors.AsType[*client.RefusedError](err)
		switch {
		case ok && refused.Status == http.StatusUnprocessableEntity: // so it always will be
			s.Log.Error("the event center refuses an event", "subject", key, "err", err)
		case ok && refused.Status == http.StatusForbidden && node == "":
			forbidden = err
			continue
		case err != nil:
			return err
		}
		s.mu.Lock()
		if now := s.waiting[key]; now.ID() == e.ID() {
			delete(s.waiting, key)
		}
		s.mu.Unlock()
	}
	return forbidden
}

func (s *Sender) post(ctx context.Context, e cloudevents.Event) error {
	body, err := json.Marshal(e)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	response, err := s.Center.Send(ctx, http.MethodPost, "/v1/events", map[string]string{"Content-Type": event.MediaType}, bytes.NewReader(body))
	if err != nil {
		return err
	}
	return response.Body.Close()
}

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
