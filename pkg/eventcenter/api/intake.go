package api

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/web"
)

// stored is the response when all events are durable.
type stored struct {
	Offset     string `json:"offset"` // the journal is durable up to here, including the batch
	Stored     int    `json:"stored"`
	Duplicates int    `json:"duplicates"`
	Conflicts  int    `json:"conflicts"`
}

// intake handles POST /v1/events.
func (s *Server) intake(w http.ResponseWriter, r *http.Request, who web.Identity) {
	body, release, err := s.read(r, who)
	defer release()
	var events []decoded
	if err == nil {
		events, err = s.decodeAll(r, body)
	}
	if err != nil {
		s.notTaken(w, err)
		return
	}
	if !s.permitted(w, events, who) {
		return
	}
	var durable []journal.Event
	for _, d := range events {
		if d.time.Sub(s.Now()) > maxSkew {
			s.metrics.future.Inc()
		}
		if d.Decoded == nil || d.Decoded.Type != event.AgentAlive {
			durable = append(durable, d.Event)
		}
	}
	var done journal.Appended
	if len(durable) > 0 {
		begun := s.Now()
		if done, err = s.Journal.Append(r.Context(), durable); err != nil {
			s.notStored(w, r, err)
			return
		}
		s.metrics.append.Observe(s.Now().Sub(begun).Seconds())
	} else {
		done.Last = s.Journal.Bounds().Newest
	}
	s.recordAlive(events)
	s.metrics.took(done)
	w.Header().Set(AliveHeader, s.alive())
	respond(w, http.StatusOK, stored{strconv.FormatUint(done.Last, 10), done.New, done.Duplicates, done.Conflicts})
}

// alive spreads the agents: each gets a different interval, within 10%.
func (s *Server) alive() string {
	return strconv.Itoa(max(1, int(s.Alive.Seconds()*(0.9+0.2*rand.Float64()))))
}

// recordAlive records signs of life, which are not journaled.
func (s *Server) recordAlive(events []decoded) {
	for _, d := range events {
		if d.Decoded == nil || d.Decoded.Type != event.AgentAlive {
			continue
		}
		if agent, ok := d.Decoded.Data.(event.Agent); ok {
			s.RecordAlive(model.Key{Cluster: d.Cluster, Node: d.Node}, agent, d.time, s.Now())
			s.metrics.events.WithLabelValues("alive").Inc()
		}
	}
}

// notTaken answers a body that could not be read or decoded. When this center is busy, the agent must neither try
// another one nor send all of its state again: hence 429.
func (s *Server) notTaken(w http.ResponseWriter, err error) {
	if e, ok := errors.AsType[*statusError](err); ok {
		refuse(w, e.status, e.reason, e.events)
		return
	}
	status := http.StatusServiceUnavailable
	if errors.Is(err, errBusy) || errors.Is(err, errShare) {
		status = http.StatusTooManyRequests
		s.metrics.limited.WithLabelValues("busy").Inc()
	}
	refuseForNow(w, status, quote(err), 10*time.Second)
}

// decodeAll decodes the events. If any is invalid, it accepts none, and the refusal names each invalid one.
func (s *Server) decodeAll(r *http.Request, body []byte) ([]decoded, error) {
	all, err := split(r, body)
	if err != nil {
		return nil, err
	}
	events := make([]decoded, 0, len(all))
	refused := &statusError{status: http.StatusUnprocessableEntity}
	for i, read := range all {
		d, status, err := decode(read)
		if err != nil {
			refused.status = min(refused.status, status) // 400 takes precedence over 422
			refused.events = append(refused.events, rejected{i, short(d.ID), quote(err)})
			continue
		}
		events = append(events, d)
	}
	if n := len(refused.events); n > 0 {
		s.metrics.events.WithLabelValues("rejected").Add(float64(n))
		refused.reason = fmt.Sprintf("%d of %d events are refused; nothing is stored", n, len(all))
		return nil, refused
	}
	return events, nil
}

// short limits how much of an event an answer repeats.
func short(id string) string { return event.Brief(id, 100) }

// permitted refuses events that the sender may not send, because of their source or their number.
func (s *Server) permitted(w http.ResponseWriter, events []decoded, who web.Identity) bool {
	var refused []rejected
	counts := map[string]int{}
	for i, d := range events {
		counts[d.Source]++
		if !maySend(who, d.Source) {
			refused = append(refused, rejected{i, short(d.ID), "this identity does not speak for its source"})
		}
	}
	if len(refused) > 0 {
		s.metrics.events.WithLabelValues("forbidden").Add(float64(len(refused)))
		refuse(w, http.StatusForbidden, fmt.Sprintf("%d of %d events are of others; nothing is stored", len(refused),
			len(events)), refused)
		return false
	}
	now := s.Now()
	for source, n := range counts {
		if !s.shares.sources.Take(source, now, n) {
			s.metrics.limited.WithLabelValues("source").Inc()
			refuseForNow(w, http.StatusTooManyRequests, "too many events of one source", 10*time.Second)
			return false
		}
	}
	if !s.shares.all.AllowN(now, len(events)) {
		s.metrics.limited.WithLabelValues("all").Inc()
		refuseForNow(w, http.StatusServiceUnavailable, "too many events in all", 30*time.Second)
		return false
	}
	return true
}

// notStored answers a batch that is not durable. The sender keeps it and retries.
func (s *Server) notStored(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // the client has gone
	}
	s.metrics.failed.Inc()
	if errors.Is(err, journal.ErrFull) {
		refuseForNow(w, http.StatusServiceUnavailable, journal.ErrFull.Error()+
			": nothing is stored; what is there can be read", time.Minute)
		return
	}
	if errors.Is(err, journal.ErrUnavailable) {
		refuseForNow(w, http.StatusServiceUnavailable, journal.ErrUnavailable.Error()+
			": it is not certain that this is stored; send it again", 10*time.Second)
		return
	}
	s.Log.Error("store events failed", "err", err)
	refuseForNow(w, http.StatusServiceUnavailable, "the journal cannot be written: nothing is stored", time.Minute)
}
