package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/deliver"
	"github.com/nodeagent/nodeagent/pkg/web"
)

const (
	maxSubscription = 256 << 10 // bytes of a request
	defaultEntries  = 100
	maxEntries      = 5000
)

// SubscriptionList is the response to GET /v1/subscriptions, by name.
type SubscriptionList struct {
	Subscriptions []deliver.Status `json:"subscriptions"`
}

// DeadLetterList is the response to GET /v1/dead-letters: without the events, oldest first.
type DeadLetterList struct {
	DeadLetters []deliver.DeadLetter `json:"deadLetters"`
}

// AuditList is the response to GET /v1/audit: who changed subscriptions, newest first.
type AuditList struct {
	Entries []deliver.Entry `json:"entries"`
}

// Question is a request about subscriptions, whose sender is authenticated and authorized.
type Question struct {
	Route  string      `json:"route"`
	Values url.Values  `json:"values,omitempty"` // of the path, and the parameters
	Body   []byte      `json:"body,omitempty"`
	Who    deliver.Who `json:"who"`
}

// Reply is the answer to a question: an object, or a refusal.
type Reply struct {
	Object  json.RawMessage `json:"object,omitempty"`
	Refusal *web.Refusal    `json:"refusal,omitempty"`
}

// Deliveries answers questions about subscriptions.
type Deliveries struct {
	Manager func() *deliver.Manager // the running one; nil while another replica delivers
	Problem func() string           // why there is no running one where there should be; nil or empty: no problem
	// Forward lets the delivering replica answer, by its Answer. Nil: there is only one replica.
	Forward func(context.Context, Question) (Reply, error)
}

// Ask returns the answer of the delivering replica. The error is a *web.Refusal.
func (d *Deliveries) Ask(ctx context.Context, q Question) (json.RawMessage, error) {
	var reply Reply
	if d.Manager() != nil || d.Forward == nil {
		reply = d.Answer(ctx, q)
	} else {
		var err error
		if reply, err = d.Forward(ctx, q); err != nil {
			return nil, elsewhere()
		}
	}
	if reply.Refusal != nil {
		return nil, reply.Refusal
	}
	return reply.Object, nil
}

// elsewhere refuses a question that this replica does not answer.
func elsewhere() error {
	return notNow(http.StatusServiceUnavailable, "another replica of this center delivers, or will soon: ask again", time.Second)
}

// Answer answers a question here, also one that another replica forwards.
func (d *Deliveries) Answer(ctx context.Context, q Question) (reply Reply) {
	var answer any
	var err error
	m := d.Manager()
	one, known := deliveries()[q.Route]
	began := time.Now()
	switch {
	case m == nil && d.Problem != nil && d.Problem() != "":
		err = notNow(http.StatusServiceUnavailable, d.Problem(), 10*time.Second)
	case m == nil:
		err = elsewhere()
	case !known:
		err = fmt.Errorf("route %.80q: %w", q.Route, deliver.ErrUnknown)
	default:
		answer, err = one.answer(ctx, m, q)
	}
	if text, ok := answer.(string); ok {
		answer = map[string]string{"done": text}
	}
	if err == nil {
		reply.Object, err = json.Marshal(answer)
	}
	if err != nil {
		var expected bool
		reply.Refusal, expected = refusalOf(err)
		after := time.Since(began)
		if !expected && (!errors.Is(ctx.Err(), context.Canceled) || after >= busyWait) { // otherwise the client left early
			m.Log.Error("answer a request failed", "route", q.Route, "after", after, "err", err)
		}
	}
	return reply
}

// delivery is how a question is answered: with an object, or with the text that reports a change.
type delivery struct {
	parameter string // the only one that is possible; empty: none is
	answer    func(ctx context.Context, m *deliver.Manager, q Question) (any, error)
}

// deliveries are the questions that the running manager answers, by route.
func deliveries() map[string]delivery {
	return map[string]delivery{
		"GET /v1/subscriptions": {"", func(_ context.Context, m *deliver.Manager, _ Question) (any, error) {
			return SubscriptionList{m.List()}, nil
		}},
		"POST /v1/subscriptions": {"", func(ctx context.Context, m *deliver.Manager, q Question) (any, error) {
			one, err := subscriptionOf(q.Body)
			if err != nil {
				return nil, refused(http.StatusBadRequest, "no subscription: "+quote(err))
			}
			return "added", m.Add(ctx, q.Who, one)
		}},
		"DELETE /v1/subscriptions/{name}": {"", func(ctx context.Context, m *deliver.Manager, q Question) (any, error) {
			return "removed", m.Remove(ctx, q.Who, q.Values.Get("name"))
		}},
		"POST /v1/subscriptions/{name}/{action}": {"after", changeSubscription},
		"GET /v1/dead-letters": {"subscription", func(ctx context.Context, m *deliver.Manager, q Question) (any, error) {
			letters, err := m.DeadLetters(ctx, q.Values.Get("subscription"))
			return DeadLetterList{letters}, err
		}},
		"GET /v1/dead-letters/{name}/{id}": {"", func(ctx context.Context, m *deliver.Manager, q Question) (any, error) {
			return m.DeadLetter(ctx, q.Values.Get("name"), q.Values.Get("id"))
		}},
		"POST /v1/dead-letters/{name}/{id}": {"", func(ctx context.Context, m *deliver.Manager, q Question) (any, error) {
			return "it is tried again", m.Redeliver(ctx, q.Who, q.Values.Get("name"), q.Values.Get("id"))
		}},
		"DELETE /v1/dead-letters/{name}/{id}": {"", func(ctx context.Context, m *deliver.Manager, q Question) (any, error) {
			return "deleted", m.Forget(ctx, q.Who, q.Values.Get("name"), q.Values.Get("id"))
		}},
		"GET /v1/audit": {"limit", func(ctx context.Context, m *deliver.Manager, q Question) (any, error) {
			limit, err := limitOf(q.Values, defaultEntries, maxEntries)
			if err != nil {
				return nil, err
			}
			entries, err := m.Audit(ctx, limit)
			return AuditList{entries}, err
		}},
	}
}

func subscriptionOf(body []byte) (one deliver.Subscription, err error) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err = decoder.Decode(&one); err == nil {
		if _, more := decoder.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("more than one object")
		}
	}
	return one, err
}

// changeSubscription pauses or resumes a subscription, or replays it after an offset.
func changeSubscription(ctx context.Context, m *deliver.Manager, q Question) (any, error) {
	name := q.Values.Get("name")
	switch action := q.Values.Get("action"); action {
	case "pause":
		return "paused", m.Pause(ctx, q.Who, name)
	case "resume":
		return "resumed", m.Resume(ctx, q.Who, name)
	case "replay":
		after, err := offsetOf("after", q.Values.Get("after"))
		if err != nil || !q.Values.Has("after") {
			return nil, refused(http.StatusBadRequest, fmt.Sprint("after must be an offset: ", err))
		}
		return fmt.Sprintf("begins after %d", after), m.Replay(ctx, q.Who, name, after)
	default:
		return nil, refused(http.StatusNotFound,
			fmt.Sprintf("%.40q is nothing that can be done: want pause, resume or replay", action))
	}
}

// delivered lets the delivering replica answer.
func (s *Server) delivered(route, parameter string) handler {
	return s.asked(parameter, func(r *http.Request, who web.Identity) (any, error) {
		if s.Deliveries == nil {
			return nil, refused(http.StatusNotFound, "this center delivers nothing")
		}
		body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxSubscription))
		if err != nil {
			return nil, refused(http.StatusBadRequest, err.Error())
		}
		q := Question{route, r.URL.Query(), body, deliver.Who{Name: who.Name, By: who.By, Cluster: who.Cluster}}
		for _, name := range []string{"name", "id", "action"} {
			q.Values.Set(name, r.PathValue(name))
		}
		return s.Deliveries.Ask(r.Context(), q)
	})
}
