// Package messages speaks with an event center: it sends faults of nodes, misses and levels, and reads what the agents report
// about pods.
package messages

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
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
	"github.com/nodeagent/nodeagent/pkg/trace/chore"
	"github.com/nodeagent/nodeagent/pkg/trace/nodefault"
	"github.com/nodeagent/nodeagent/pkg/web/client"
)

const (
	detector = "tracecenter" // the name of tracecenter as a detector
	check    = "pod-delivery"
	repeat   = 10 * time.Minute // between reports of an active fault
	limit    = 10 * time.Second // for an answer
	sendTurn = time.Second
	maxWait  = 10_000 // events that wait: one for each fault, and those queued
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
	for _, f := range active {
		key := [2]string{f.Node, string(f.Kind)}
		last, known := s.sent[key]
		if known && now.Sub(last) < repeat {
			continue
		}
		kind := event.FaultRaised
		if known {
			kind = event.FaultUpdated
		}
		if err := s.queue(key, kind, f, now); err != nil {
			return err
		}
		s.sent[key] = now
	}
	for _, f := range ended {
		key := [2]string{f.Node, string(f.Kind)}
		delete(s.sent, key)
		if err := s.queue(key, event.FaultCleared, f, now); err != nil {
			return err
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

// queue needs mu.
func (s *Sender) queue(key [2]string, kind event.Type, f nodefault.Fault, now time.Time) error {
	if _, replaces := s.waiting[key]; !replaces && len(s.waiting) >= maxWait {
		return fmt.Errorf("report %s of node %s: %d reports wait already", f.Kind, f.Node, maxWait)
	}
	e, err := event.OfDetector(kind, s.Cluster, f.Node, detector, rand.Text(), now, event.Fault{Check: check, Reason: string(f.Kind), Severity: finding.Warning,
		Subject:    finding.Subject{Kind: "Node", Name: f.Node},
		Message:    fmt.Sprintf("%d of %d pods were not delivered in time in %v, for reasons of this node", f.Misses, f.Acts, nodefault.Window),
		Facts:      map[string]string{"misses": strconv.Itoa(f.Misses), "pods": strconv.Itoa(f.Acts), "othersShare": fmt.Sprintf("%.4f", f.Others)},
		ObservedAt: f.Last, RaisedAt: f.Since, TTLSeconds: int(nodefault.Forgotten / time.Second)})
	if err != nil {
		return err
	}
	s.waiting[key] = e
	return nil
}

// Run sends until ctx ends. An event that the center does not take is sent again, with the same ID.
func (s *Sender) Run(ctx context.Context) {
	chore.Repeat(ctx, s.Log, sendTurn, chore.Chore{Name: "report to the event center", Do: s.send})
}

func (s *Sender) send(ctx context.Context, _ time.Time) error {
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
