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

// done is the response to a change.
type done struct {
	Done string `json:"done"`
}

// whoOf returns the author for the audit.
func whoOf(i web.Identity) deliver.Who {
	return deliver.Who{Name: i.Name, By: i.By, Cluster: i.Cluster}
}

// delivers returns the running manager. If the center does not deliver, it refuses the request; if another replica
// delivers, it forwards the request there.
func (s *Server) delivers(w http.ResponseWriter, r *http.Request, who web.Identity, parameters ...string) (*deliver.Manager,
	bool) {
	if s.Deliveries == nil {
		refuse(w, http.StatusNotFound, "this center delivers nothing", nil)
		return nil, false
	}
	if !only(w, r.URL.Query(), parameters...) {
		return nil, false
	}
	m := s.Deliveries()
	if m == nil {
		s.forward(w, r, who)
	}
	return m, m != nil
}

// answerChange reports success, or why the change failed.
func (s *Server) answerChange(w http.ResponseWriter, err error, what string) {
	switch {
	case err == nil:
		respond(w, http.StatusOK, done{what})
	case errors.Is(err, deliver.ErrUnknown):
		refuse(w, http.StatusNotFound, quote(err), nil)
	case errors.Is(err, deliver.ErrRefused):
		refuse(w, http.StatusUnprocessableEntity, quote(err), nil)
	default:
		s.Log.Error("read or change a subscription failed", "err", err)
		refuseForNow(w, http.StatusServiceUnavailable, quote(err), 10*time.Second)
	}
}

func (s *Server) subscriptions(w http.ResponseWriter, r *http.Request, who web.Identity) {
	if m, ok := s.delivers(w, r, who); ok {
		respond(w, http.StatusOK, SubscriptionList{m.List()})
	}
}

func (s *Server) subscribe(w http.ResponseWriter, r *http.Request, who web.Identity) {
	m, ok := s.delivers(w, r, who)
	if !ok {
		return
	}
	var one deliver.Subscription
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxSubscription))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&one)
	if err == nil {
		if _, more := decoder.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("more than one object")
		}
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, "no subscription: "+quote(err), nil)
		return
	}
	s.answerChange(w, m.Add(r.Context(), whoOf(who), one), "added")
}

func (s *Server) unsubscribe(w http.ResponseWriter, r *http.Request, who web.Identity) {
	if m, ok := s.delivers(w, r, who); ok {
		s.answerChange(w, m.Remove(r.Context(), whoOf(who), r.PathValue("name")), "removed")
	}
}

// changeSubscription handles POST /v1/subscriptions/{name}/{action}: pause, resume, or replay after an offset.
func (s *Server) changeSubscription(w http.ResponseWriter, r *http.Request, who web.Identity) {
	m, ok := s.delivers(w, r, who, "after")
	if !ok {
		return
	}
	name := r.PathValue("name")
	switch action := r.PathValue("action"); action {
	case "pause":
		s.answerChange(w, m.Pause(r.Context(), whoOf(who), name), "paused")
	case "resume":
		s.answerChange(w, m.Resume(r.Context(), whoOf(who), name), "resumed")
	case "replay":
		after, err := offsetOf("after", r.URL.Query().Get("after"))
		if err != nil || !r.URL.Query().Has("after") {
			refuse(w, http.StatusBadRequest, fmt.Sprint("after must be an offset: ", err), nil)
			return
		}
		s.answerChange(w, m.Replay(r.Context(), whoOf(who), name, after), fmt.Sprintf("begins after %d", after))
	default:
		refuse(w, http.StatusNotFound, fmt.Sprintf("%.40q is nothing that can be done: want pause, resume or replay", action), nil)
	}
}

func (s *Server) deadLetters(w http.ResponseWriter, r *http.Request, who web.Identity) {
	m, ok := s.delivers(w, r, who, "subscription")
	if !ok {
		return
	}
	letters, err := m.DeadLetters(r.Context(), r.URL.Query().Get("subscription"))
	if err != nil {
		s.answerChange(w, err, "")
		return
	}
	respond(w, http.StatusOK, DeadLetterList{letters})
}

func (s *Server) deadLetter(w http.ResponseWriter, r *http.Request, who web.Identity) {
	m, ok := s.delivers(w, r, who)
	if !ok {
		return
	}
	letter, err := m.DeadLetter(r.Context(), r.PathValue("name"), r.PathValue("id"))
	if err != nil {
		s.answerChange(w, err, "")
		return
	}
	respond(w, http.StatusOK, letter)
}

func (s *Server) redeliver(w http.ResponseWriter, r *http.Request, who web.Identity) {
	if m, ok := s.delivers(w, r, who); ok {
		s.answerChange(w, m.Redeliver(r.Context(), whoOf(who), r.PathValue("name"), r.PathValue("id")),
			"it is tried again")
	}
}

func (s *Server) forget(w http.ResponseWriter, r *http.Request, who web.Identity) {
	if m, ok := s.delivers(w, r, who); ok {
		s.answerChange(w, m.Forget(r.Context(), whoOf(who), r.PathValue("name"), r.PathValue("id")), "deleted")
	}
}

func (s *Server) audit(w http.ResponseWriter, r *http.Request, who web.Identity) {
	m, ok := s.delivers(w, r, who, "limit")
	if !ok {
		return
	}
	limit, err := limitOf(r.URL.Query(), defaultEntries, maxEntries)
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error(), nil)
		return
	}
	entries, err := m.Audit(r.Context(), limit)
	if err != nil {
		s.answerChange(w, err, "")
		return
	}
	respond(w, http.StatusOK, AuditList{entries})
}
