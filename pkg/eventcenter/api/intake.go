package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
)

// stored is the answer to events that are durable.
type stored struct {
	Offset     string `json:"offset"` // up to which the journal is durable, with all of the batch
	Stored     int    `json:"stored"`
	Duplicates int    `json:"duplicates"`
	Conflicts  int    `json:"conflicts"`
}

// intake is POST /v1/events.
func (s *Server) intake(w http.ResponseWriter, r *http.Request, who Identity) {
	size, err := s.room(w, r)
	if err != nil {
		s.notTaken(w, err)
		return
	}
	defer s.bodies.Release(size)
	events, err := s.receive(w, r)
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
		if d.Said == nil || d.Said.Type != event.AgentAlive {
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
	s.heard(events)
	s.metrics.took(done)
	w.Header().Set(AliveHeader, s.alive())
	respond(w, http.StatusOK, stored{strconv.FormatUint(done.Last, 10), done.New, done.Duplicates, done.Conflicts})
}

// alive spreads the agents: each is told another interval, within a tenth.
func (s *Server) alive() string {
	return strconv.Itoa(max(1, int(s.Alive.Seconds()*(0.9+0.2*rand.Float64()))))
}

// heard notes the agents that are alive, which is not journaled.
func (s *Server) heard(events []decoded) {
	for _, d := range events {
		if d.Said == nil || d.Said.Type != event.AgentAlive {
			continue
		}
		if agent, ok := d.Said.Data.(event.Agent); ok {
			s.Heard(model.Key{Cluster: d.Cluster, Node: d.Node}, agent, d.time, s.Now())
			s.metrics.events.WithLabelValues("alive").Inc()
		}
	}
}

// notTaken answers what was not read or decoded. That this center is busy is no reason to ask another one, nor for an
// agent to send all of its state again: 429.
func (s *Server) notTaken(w http.ResponseWriter, err error) {
	if e, ok := errors.AsType[*statusError](err); ok {
		refuse(w, e.status, e.reason, e.events)
		return
	}
	status := http.StatusServiceUnavailable
	if errors.Is(err, errBusy) {
		status = http.StatusTooManyRequests
		s.metrics.limited.WithLabelValues("busy").Inc()
	}
	refuseForNow(w, status, quote(err), 10*time.Second)
}

const (
	// BusyWait is how long a request waits for others. It is half of what a sender waits for an answer: what is worked on
	// when its sender has gone is sent again, and more and more work would be for nobody.
	BusyWait = 5 * time.Second
	// AtOnce is how many requests are on their way to the journal, with the usual limit of their bytes. They are enough for its
	// transactions to be large. Those that wait may do so before anything of them is read (waited).
	AtOnce = 512

	usualBytes = 32 << 20
	leastSize  = usualBytes / AtOnce // is what a request counts at least
)

// waited returns how long a request has waited for others before it was read, where its http.ResponseWriter says so.
func waited(w http.ResponseWriter) time.Duration {
	for {
		switch this := w.(type) {
		case interface{ Waited() time.Duration }:
			return this.Waited()
		case interface{ Unwrap() http.ResponseWriter }:
			w = this.Unwrap()
		default:
			return 0
		}
	}
}

// errBusy means that others are worked on already. Who waits meanwhile sends more at once the next time.
var errBusy = errors.New("too many requests at the same time")

// room waits until the body of a request may be in memory, and returns what it counts, to be released when it is answered. So many
// bytes bound all that is on its way to the journal: bodies, what is decoded of them, and what waits for its transaction. A
// number of requests would not: most have one event, some a thousand.
func (s *Server) room(w http.ResponseWriter, r *http.Request) (size int64, err error) {
	if size = r.ContentLength; size < 0 {
		size = maxBody
	}
	if size > maxBody {
		return 0, tooLarge()
	}
	wait := BusyWait - waited(w)
	if wait <= 0 {
		return 0, errBusy
	}
	size = max(size, leastSize)
	if s.bodies.TryAcquire(size) {
		return size, nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	if s.bodies.Acquire(ctx, size) != nil {
		return 0, errBusy
	}
	return size, nil
}

func tooLarge() error {
	return &statusError{status: http.StatusRequestEntityTooLarge, reason: fmt.Sprintf("%d bytes are possible", maxBody)}
}

// receive reads and decodes the body.
func (s *Server) receive(w http.ResponseWriter, r *http.Request) (events []decoded, err error) {
	if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyLimit)); err != nil &&
		!errors.Is(err, http.ErrNotSupported) {
		return nil, err
	}
	body, err := readBody(w, r)
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, tooLarge()
	}
	if err != nil {
		return nil, &statusError{status: http.StatusBadRequest, reason: "the body ends early"}
	}
	if events, ok := written(r, body); ok {
		return events, nil
	}
	texts, err := split(r, body)
	if err != nil {
		return nil, err
	}
	return s.decodeAll(texts)
}

// readBody reads a body into so much memory as it says to need.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength < 0 {
		return io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	}
	body := make([]byte, r.ContentLength)
	_, err := io.ReadFull(r.Body, body)
	return body, err
}

// decodeAll decodes the events. Where some cannot be taken none is, and the refusal names each of them.
func (s *Server) decodeAll(texts []json.RawMessage) ([]decoded, error) {
	events := make([]decoded, 0, len(texts))
	refused := &statusError{status: http.StatusUnprocessableEntity}
	for i, text := range texts {
		d, status, err := decode(text)
		if err != nil {
			refused.status = min(refused.status, status) // 400 before 422
			refused.events = append(refused.events, rejected{i, short(d.ID), quote(err)})
			continue
		}
		events = append(events, d)
	}
	if n := len(refused.events); n > 0 {
		s.metrics.events.WithLabelValues("rejected").Add(float64(n))
		refused.reason = fmt.Sprintf("%d of %d events are refused; nothing is stored", n, len(texts))
		return nil, refused
	}
	return events, nil
}

// short bounds what an answer repeats of an event.
func short(id string) string { return quote(errors.New(id[:min(len(id), 100)])) }

// permitted answers what the sender may not send, by whom it speaks for or by how much it is.
func (s *Server) permitted(w http.ResponseWriter, events []decoded, who Identity) bool {
	var refused []rejected
	counts := map[string]int{}
	for i, d := range events {
		counts[d.Source]++
		if !who.maySend(d.Source) {
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
		if !s.rates.sources.take(source, now, n) {
			s.metrics.limited.WithLabelValues("source").Inc()
			refuseForNow(w, http.StatusTooManyRequests, "too many events of one source", 10*time.Second)
			return false
		}
	}
	if !s.rates.all.AllowN(now, len(events)) {
		s.metrics.limited.WithLabelValues("all").Inc()
		refuseForNow(w, http.StatusServiceUnavailable, "too many events in all", 30*time.Second)
		return false
	}
	return true
}

// notStored answers a batch that is not durable. The sender keeps it and sends it again.
func (s *Server) notStored(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // nobody waits
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
	s.Log.Error("events could not be stored", "err", err)
	refuseForNow(w, http.StatusServiceUnavailable, "the journal cannot be written: nothing is stored", time.Minute)
}
