package nodefault

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/web/client"
)

const (
	detector  = "tracecenter"
	check     = "pod-delivery"
	repeat    = 10 * time.Minute // between reports of an active fault
	sendLimit = 10 * time.Second
	sendRetry = 5 * time.Second
	maxWait   = 10_000 // events that wait: one for each fault
)

// Sender reports faults of nodes to an event center, as a detector beside the agents. Without repetition, a fault ends
// there by itself after two hours. It is safe for concurrent use.
type Sender struct {
	Center  *client.Client
	Cluster string
	Log     *slog.Logger

	mu      sync.Mutex // guards the fields below
	waiting map[[2]string]cloudevents.Event
	sent    map[[2]string]time.Time // of active faults
	wake    chan struct{}
}

// NewSender returns a sender of the faults of a cluster's nodes.
func NewSender(center *client.Client, cluster string, log *slog.Logger) *Sender {
	return &Sender{Center: center, Cluster: cluster, Log: log, waiting: map[[2]string]cloudevents.Event{}, sent: map[[2]string]time.Time{},
		wake: make(chan struct{}, 1)}
}

// Report queues what has changed. Of each fault only the newest state waits.
func (s *Sender) Report(active, ended []Fault, now time.Time) error {
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
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return nil
}

// queue needs mu.
func (s *Sender) queue(key [2]string, kind event.Type, f Fault, now time.Time) error {
	if _, replaces := s.waiting[key]; !replaces && len(s.waiting) >= maxWait {
		return fmt.Errorf("report %s of node %s: %d reports wait already", f.Kind, f.Node, maxWait)
	}
	e := cloudevents.New()
	e.SetID(rand.Text())
	e.SetType(string(kind))
	e.SetSource(strings.Join([]string{"/clusters", url.PathEscape(s.Cluster), "nodes", url.PathEscape(f.Node), detector}, "/"))
	e.SetTime(now)
	err := e.SetData("application/json", event.Fault{Check: check, Reason: string(f.Kind), Severity: finding.Warning,
		Subject:    finding.Subject{Kind: "Node", Name: f.Node},
		Message:    fmt.Sprintf("%d of %d pods were not delivered in time in %v, for reasons of this node", f.Misses, f.Acts, Window),
		Facts:      map[string]string{"misses": strconv.Itoa(f.Misses), "pods": strconv.Itoa(f.Acts), "othersShare": fmt.Sprintf("%.4f", f.Others)},
		ObservedAt: f.Last, RaisedAt: f.Since, TTLSeconds: int(forgotten / time.Second)})
	if err != nil {
		return err
	}
	s.waiting[key] = e
	return nil
}

// Run sends until ctx ends. An event that the center does not take is sent again, with the same ID.
func (s *Sender) Run(ctx context.Context) {
	failing := false
	for {
		err := s.send(ctx)
		if ctx.Err() != nil {
			return
		}
		if (err != nil) != failing {
			failing = err != nil
			s.Log.Warn("reporting faults of nodes to the event center changed", "failing", failing, "err", err)
		}
		retry := (<-chan time.Time)(nil)
		if failing {
			retry = time.After(sendRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-retry:
		}
	}
}

func (s *Sender) send(ctx context.Context) error {
	s.mu.Lock()
	var keys [][2]string
	for key := range s.waiting {
		keys = append(keys, key)
	}
	s.mu.Unlock()
	for _, key := range keys {
		s.mu.Lock()
		e, waits := s.waiting[key]
		s.mu.Unlock()
		if !waits {
			continue
		}
		body, err := json.Marshal(e)
		if err != nil {
			return err
		}
		err = s.post(ctx, body)
		if refused, ok := errors.AsType[*client.RefusedError](err); ok && refused.Status == http.StatusUnprocessableEntity {
			s.Log.Error("the event center refuses a fault of a node", "node", key[0], "reason", key[1], "err", err) // so it always will
		} else if err != nil {
			return err
		}
		s.mu.Lock()
		if now := s.waiting[key]; now.ID() == e.ID() {
			delete(s.waiting, key)
		}
		s.mu.Unlock()
	}
	return nil
}

func (s *Sender) post(ctx context.Context, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, sendLimit)
	defer cancel()
	response, err := s.Center.Send(ctx, http.MethodPost, "/v1/events", map[string]string{"Content-Type": event.MediaType}, bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, client.MaxAnswer))
	return nil
}
