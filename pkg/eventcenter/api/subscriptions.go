package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
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

// whoOf returns the author for the audit.
func whoOf(i web.Identity) deliver.Who {
	return deliver.Who{Name: i.Name, By: i.By, Cluster: i.Cluster}
}

// delivery answers a request about subscriptions: with an object, or with the text that reports a change.
type delivery struct {
	parameter string // the only one that is possible; empty: none is
	answer    func(m *deliver.Manager, r *http.Request, who deliver.Who) (any, error)
}

// deliveries are the requests that the running manager answers.
func deliveries() map[string]delivery {
	return map[string]delivery{
		"GET /v1/subscriptions": {"", func(m *deliver.Manager, _ *http.Request, _ deliver.Who) (any, error) {
			return SubscriptionList{m.List()}, nil
		}},
		"POST /v1/subscriptions": {"", func(m *deliver.Manager, r *http.Request, who deliver.Who) (any, error) {
			one, err := subscriptionOf(r)
			if err != nil {
				return nil, refused(http.StatusBadRequest, "no subscription: "+quote(err))
			}
			return "added", m.Add(r.Context(), who, one)
		}},
		"DELETE /v1/subscriptions/{name}": {"", func(m *deliver.Manager, r *http.Request, who deliver.Who) (any, error) {
			return "removed", m.Remove(r.Context(), who, r.PathValue("name"))
		}},
		"POST /v1/subscriptions/{name}/{action}": {"after", changeSubscription},
		"GET /v1/dead-letters": {"subscription", func(m *deliver.Manager, r *http.Request, _ deliver.Who) (any, error) {
			letters, err := m.DeadLetters(r.Context(), r.URL.Query().Get("subscription"))
			return DeadLetterList{letters}, err
		}},
		"GET /v1/dead-letters/{name}/{id}": {"", func(m *deliver.Manager, r *http.Request, _ deliver.Who) (any, error) {
			return m.DeadLetter(r.Context(), r.PathValue("name"), r.PathValue("id"))
		}},
		"POST /v1/dead-letters/{name}/{id}": {"", func(m *deliver.Manager, r *http.Request, who deliver.Who) (any, error) {
			return "it is tried again", m.Redeliver(r.Context(), who, r.PathValue("name"), r.PathValue("id"))
		}},
		"DELETE /v1/dead-letters/{name}/{id}": {"", func(m *deliver.Manager, r *http.Request, who deliver.Who) (any, error) {
			return "deleted", m.Forget(r.Context(), who, r.PathValue("name"), r.PathValue("id"))
		}},
		"GET /v1/audit": {"limit", func(m *deliver.Manager, r *http.Request, _ deliver.Who) (any, error) {
			limit, err := limitOf(r.URL.Query(), defaultEntries, maxEntries)
			if err != nil {
				return nil, err
			}
			entries, err := m.Audit(r.Context(), limit)
			return AuditList{entries}, err
		}},
	}
}

func subscriptionOf(r *http.Request) (one deliver.Subscription, err error) {
	decoder := json.NewDecoder(http.MaxBytesReader(nil, r.Body, maxSubscription))
	decoder.DisallowUnknownFields()
	if err = decoder.Decode(&one); err == nil {
		if _, more := decoder.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("more than one object")
		}
	}
	return one, err
}

// changeSubscription pauses or resumes a subscription, or replays it after an offset.
func changeSubscription(m *deliver.Manager, r *http.Request, who deliver.Who) (any, error) {
	name := r.PathValue("name")
	switch action := r.PathValue("action"); action {
	case "pause":
		return "paused", m.Pause(r.Context(), who, name)
	case "resume":
		return "resumed", m.Resume(r.Context(), who, name)
	case "replay":
		after, err := offsetOf("after", r.URL.Query().Get("after"))
		if err != nil || !r.URL.Query().Has("after") {
			return nil, refused(http.StatusBadRequest, fmt.Sprint("after must be an offset: ", err))
		}
		return fmt.Sprintf("begins after %d", after), m.Replay(r.Context(), who, name, after)
	default:
		return nil, refused(http.StatusNotFound,
			fmt.Sprintf("%.40q is nothing that can be done: want pause, resume or replay", action))
	}
}

// delivered answers from the running manager. If another replica delivers, it forwards the request there.
func (s *Server) delivered(d delivery) handler {
	here := s.asked(d.parameter, func(r *http.Request, who web.Identity) (any, error) {
		m := s.Deliveries()
		if m == nil {
			return nil, notNow(http.StatusServiceUnavailable, "this replica has just ceased to deliver: ask again", time.Second)
		}
		answer, err := d.answer(m, r, whoOf(who))
		if text, ok := answer.(string); ok {
			answer = map[string]string{"done": text}
		}
		return answer, err
	})
	return func(w http.ResponseWriter, r *http.Request, who web.Identity) {
		switch {
		case s.Deliveries == nil:
			s.fail(w, r, refused(http.StatusNotFound, "this center delivers nothing"))
		case s.Deliveries() == nil:
			s.forward(w, r, who)
		default:
			here(w, r, who)
		}
	}
}
