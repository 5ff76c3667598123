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
	Offset     uint64 `json:"offset,string"` // the journal is durable up to here, including the batch
	Stored     int    `json:"stored"`
	Duplicates int    `json:"duplicates"`
	Conflicts  int    `json:"conflicts"`
}

// intake handles POST /v1/events.
func (s *Server) intake(w http.ResponseWriter, r *http.Request, who web.Identity) {
	answer, err := s.take(r, who)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set(AliveHeader, s.alive())
	respond(w, http.StatusOK, answer)
}

// take stores the events of a request.
func (s *Server) take(r *http.Request, who web.Identity) (answer stored, err error) {
	body, release, err := s.read(r, who)
	defer release()
	if err != nil {
		return answer, err
	}
	events, err := s.decodeAll(r, body)
	if err != nil {
		return answer, err
	}
	if err := s.permitted(events, who); err != nil {
		return answer, err
	}
	var durable []journal.Event
	var alive []decoded // signs of life are not journaled
	for _, d := range events {
		if d.time.Sub(s.Now()) > maxSkew {
			s.metrics.future.Inc()
		}
		if d.Decoded != nil && d.Decoded.Type == event.AgentAlive {
			alive = append(alive, d)
		} else {
			durable = append(durable, d.Event)
		}
	}
	var done journal.Appended
	if len(durable) > 0 {
		begun := s.Now()
		if done, err = s.Journal.Append(r.Context(), durable); err != nil {
			return answer, s.notStored(r, err, s.Now().Sub(begun))
		}
		s.metrics.append.Observe(s.Now().Sub(begun).Seconds())
	} else {
		done.Last = s.Journal.Bounds().Newest
	}
	for _, d := range alive {
		if agent, ok := d.Decoded.Data.(event.Agent); ok {
			s.RecordAlive(model.Key{Cluster: d.Cluster, Node: d.Node}, agent, d.time, s.Now())
			s.metrics.events.WithLabelValues("alive").Inc()
		}
	}
	s.metrics.took(done)
	return stored{done.Last, done.New, done.Duplicates, done.Conflicts}, nil
}

// alive spreads the agents: each gets a different interval, within 10%.
func (s *Server) alive() string {
	return strconv.Itoa(max(1, int(s.Alive.Seconds()*(0.9+0.2*rand.Float64()))))
}

// decodeAll decodes the events. If any is invalid, it accepts none, and the refusal names each invalid one.
func (s *Server) decodeAll(r *http.Request, body []byte) ([]decoded, error) {
	all, err := split(r, body)
	if err != nil {
		return nil, err
	}
	events := make([]decoded, 0, len(all))
	var bad []rejected
	refusal := http.StatusUnprocessableEntity
	for i, read := range all {
		d, status, err := decode(read)
		if err != nil {
			refusal = min(refusal, status) // 400 takes precedence over 422
			bad = append(bad, rejected{i, short(d.ID), quote(err)})
			continue
		}
		events = append(events, d)
	}
	if n := len(bad); n > 0 {
		s.metrics.events.WithLabelValues("rejected").Add(float64(n))
		return nil, refusedEvents(refusal, fmt.Sprintf("%d of %d events are refused; nothing is stored", n, len(all)), bad)
	}
	return events, nil
}

// short limits how much of an event an answer repeats.
func short(id string) string { return event.Brief(id, 100) }

// permitted refuses events that the sender may not send, because of their source or their number.
func (s *Server) permitted(events []decoded, who web.Identity) error {
	var foreign []rejected
	counts := map[string]int{}
	for i, d := range events {
		counts[d.Source]++
		if !maySend(who, d.Source) {
			foreign = append(foreign, rejected{i, short(d.ID), "this identity does not speak for its source"})
		}
	}
	if len(foreign) > 0 {
		s.metrics.events.WithLabelValues("forbidden").Add(float64(len(foreign)))
		return refusedEvents(http.StatusForbidden, fmt.Sprintf("%d of %d events are of others; nothing is stored", len(foreign),
			len(events)), foreign)
	}
	now := s.Now()
	for source, n := range counts {
		if !s.shares.sources.Take(source, now, n) {
			s.metrics.limited.WithLabelValues("source").Inc()
			return notNow(http.StatusTooManyRequests, "too many events of one source", 10*time.Second)
		}
	}
	if !s.shares.all.AllowN(now, len(events)) {
		s.metrics.limited.WithLabelValues("all").Inc()
		return notNow(http.StatusServiceUnavailable, "too many events in all", 30*time.Second)
	}
	return nil
}

// notStored returns the refusal for a batch that is not durable after a duration. The sender keeps it and retries.
func (s *Server) notStored(r *http.Request, err error, after time.Duration) error {
	reason, within := "the journal cannot be written: nothing is stored", time.Minute
	switch {
	case isGone(r) && after < busyWait:
		reason = "it is not certain that this is stored; send it again"
		return notNow(http.StatusServiceUnavailable, reason, within)
	case isGone(r): // it has given up: the journal hangs
		s.Log.Warn("store events failed", "after", after, "err", err)
	case errors.Is(err, journal.ErrFull):
		reason = journal.ErrFull.Error() + ": nothing is stored; what is there can be read"
	case errors.Is(err, journal.ErrUnavailable):
		reason = journal.ErrUnavailable.Error() + ": it is not certain that this is stored; send it again"
		within = 10 * time.Second
	default:
		s.Log.Error("store events failed", "err", err)
	}
	s.metrics.failed.Inc()
	return notNow(http.StatusServiceUnavailable, reason, within)
}
