package deliver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// noBatchesFor is how long a target that takes no batches, but does not say so by 415, is sent single events.
const noBatchesFor = 5 * time.Minute

// errNotSent means that the events are still to be sent: the subscription was paused, or is about to end, or the target
// refused them as a batch.
var errNotSent = errors.New("not sent")

// itemOf returns a record in the form in which it is sent.
func (s *subscription) itemOf(r journal.Record) item {
	return item{fmt.Sprintf("%s-%d", s.state.Journal, r.Offset), r.Text()}
}

// deliver sends the events of a page until each is delivered or its node held. It returns false if it gave up.
func (s *subscription) deliver(ctx context.Context, lanes []*lane, wanted []journal.Record) bool {
	if s.modeNow() == event.Batch {
		rest := s.batches(ctx, wanted)
		if len(rest) == 0 {
			return true
		}
		for _, l := range lanes {
			l.records = slices.DeleteFunc(l.records, func(r journal.Record) bool { return r.Offset < rest[0].Offset })
		}
		lanes = slices.DeleteFunc(lanes, func(l *lane) bool { return len(l.records) == 0 })
	}
	for len(lanes) > 0 {
		if !s.open(ctx) {
			return false
		}
		together := parallel
		if s.down() {
			together = 1
		}
		now := lanes[:min(together, len(lanes))]
		failed := make([]error, len(now))
		var all sync.WaitGroup
		for i, l := range now {
			all.Go(func() { failed[i] = s.lane(ctx, l) })
		}
		all.Wait()
		rest := lanes[len(now):]
		for i, l := range now {
			if failed[i] != nil && !s.holdLane(l, failed[i]) {
				rest = append(rest, l)
			}
		}
		lanes = rest
	}
	return true
}

// batches sends events in batches until one is not accepted. It returns the rest.
func (s *subscription) batches(ctx context.Context, records []journal.Record) []journal.Record {
	for len(records) > 0 {
		var items []item
		for size := 0; len(items) < len(records); {
			next := records[len(items)]
			if size += len(next.JSON); size > batchBytes && len(items) > 0 {
				break
			}
			items = append(items, s.itemOf(next))
		}
		if !s.open(ctx) || s.send(ctx, items) != nil {
			break
		}
		records = records[len(items):]
	}
	return records
}

// lane sends the events of a node one by one until one fails.
func (s *subscription) lane(ctx context.Context, l *lane) error {
	for len(l.records) > 0 {
		if err := s.send(ctx, []item{s.itemOf(l.records[0])}); err != nil {
			return err
		}
		l.records = l.records[1:]
	}
	return nil
}

// holdLane holds a node whose event failed, so that the others need not wait for it. It returns false if the target
// itself is down or too many nodes are held: then the whole subscription waits.
func (s *subscription) holdLane(l *lane, err error) bool {
	if errors.Is(err, errNotSent) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fresh[l.key()] = true
	if len(s.fresh) > downAfter || len(s.state.Held) >= maxHeld {
		s.failures++
		s.closed = event.Later(s.closed, time.Now().Add(backoff(s.failures)))
		return false
	}
	h := l.held
	h.After = l.records[0].Offset - 1
	h.failed(time.Now(), err)
	s.hold(&h)
	return true
}

func (s *subscription) down() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.fresh) >= downAfter
}

func (s *subscription) modeNow() event.Mode {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.modeNow()
}

// open waits until an event may be sent: the subscription is not paused, the target has not asked for a delay and has
// agreed to receive events. It returns false if it gave up.
func (s *subscription) open(ctx context.Context) bool {
	for ctx.Err() == nil {
		s.mu.Lock()
		closed, paused := time.Until(s.closed), s.state.Paused != ""
		s.mu.Unlock()
		switch {
		case paused:
			return false
		case closed > 0:
			wait(ctx, min(closed, idleWait), nil, nil) // it may be paused in the meantime; wake is for follow
			continue
		}
		err := s.ask(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() == nil {
			s.mu.Lock()
			s.failures++
			s.failed(err, backoff(s.failures))
			s.mu.Unlock()
		}
	}
	return false
}

// failed records a failed request, and that none is made before the target wants one, or before a duration has passed.
// It pauses the subscription, and returns true, if the target is gone. mu is held.
func (s *subscription) failed(err error, pause time.Duration) (gone bool) {
	if text := plain(err.Error()); text != s.problem {
		s.problem = text
		s.m.Log.Warn("send to a subscriber failed, retrying", "subscription", s.Name, "err", text)
	}
	r, refused := errors.AsType[*event.RefusedError](err)
	if refused {
		pause = max(pause, r.RetryAfter)
	}
	if pause > 0 {
		s.closed = event.Later(s.closed, time.Now().Add(pause))
	}
	if gone = refused && r.Status == http.StatusGone; gone {
		s.pause("the target answered 410 Gone")
	}
	return gone
}

// ask asks the target whether it wants events, unless it has already agreed.
func (s *subscription) ask(ctx context.Context) error {
	t, err := s.m.Settings.target(s.URL)
	if err != nil {
		return err
	}
	if _, err := readSecrets(t.SecretFile); err != nil {
		return err
	}
	s.asking.Lock()
	defer s.asking.Unlock()
	s.mu.Lock()
	granted, perMinute := !s.state.Granted.IsZero() || t.NoHandshake, s.state.PerMinute
	s.mu.Unlock()
	if !granted {
		if perMinute, err = handshake(ctx, s.client, s.URL, s.m.Settings.Origin); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !granted {
		s.state.Granted, s.state.PerMinute, s.dirty = time.Now().UTC(), perMinute, true
		s.failures, s.limiter = 0, nil
	}
	if perMinute > 0 && s.limiter == nil {
		s.limiter = rate.NewLimiter(rate.Limit(float64(perMinute)/60), 1)
	}
	if s.problem != "" && len(s.fresh) == 0 {
		s.problem = ""
	}
	return nil
}

// send makes one request, or several if the target does not take the mode. It returns nil if all were accepted.
func (s *subscription) send(ctx context.Context, items []item) error {
	for alone := false; ; {
		mode := s.modeNow()
		if mode != event.Batch && len(items) > 1 {
			return errNotSent
		}
		err := s.attempt(ctx, mode, items)
		if ctx.Err() != nil && err != nil {
			return errNotSent
		}
		r, refused := errors.AsType[*event.RefusedError](err)
		if refused && r.Status == http.StatusUnsupportedMediaType && s.nextMode(mode) {
			continue
		}
		if refused && mode == event.Batch && notABatch(r.Status) {
			if len(items) > 1 {
				return errNotSent // one of them is refused, or batches are: single events will show which
			}
			s.noBatches(noBatchesFor)
			alone = true
			continue
		}
		if errors.Is(err, errNotSent) {
			return err
		}
		if refused && alone {
			s.noBatches(0) // the event is refused, not the batch
		}
		if alone && err == nil {
			s.m.Log.Info("target takes single events, no batches: sending these for a time", "subscription", s.Name,
				"for", noBatchesFor)
		}
		return s.note(err, len(items))
	}
}

// noBatches makes a target get single events for a duration.
func (s *subscription) noBatches(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.NoBatches, s.dirty = time.Time{}, true
	if d > 0 {
		s.state.NoBatches = time.Now().Add(d)
	}
}

// notABatch reports whether a response refuses the batch, while single events may be accepted.
func notABatch(status int) bool {
	return status == http.StatusBadRequest || status == http.StatusUnprocessableEntity ||
		status == http.StatusRequestEntityTooLarge
}

// note counts an attempt and updates the state from its result.
func (s *subscription) note(err error, items int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.counts.Failed++
		if s.failed(err, 0) {
			return errNotSent
		}
		return err
	}
	s.counts.Delivered += uint64(items)
	s.failures = 0
	clear(s.fresh)
	if s.problem != "" {
		s.problem = ""
		s.m.Log.Info("subscriber accepts events again", "subscription", s.Name)
	}
	return nil
}

// nextMode falls back to a simpler mode. It returns false if there is none: the next attempt starts with the first.
func (s *subscription) nextMode(from event.Mode) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.modeNow() != from { // another goroutine has changed it
		return true
	}
	s.dirty = true
	if next := from.Simpler(); next != "" {
		s.state.Mode = next
		s.m.Log.Info("target refused a mode: sending in the next one", "subscription", s.Name, "mode", from, "next", next)
		return true
	}
	s.state.Mode = s.mode()
	return false
}

// attempt makes one request.
func (s *subscription) attempt(ctx context.Context, mode event.Mode, items []item) error {
	t, err := s.m.Settings.target(s.URL)
	if err != nil {
		return err
	}
	secrets, err := readSecrets(t.SecretFile)
	if err != nil {
		return errNotSent // open knows the reason
	}
	var events [][]byte
	for _, one := range items {
		events = append(events, one.JSON)
	}
	m, err := mode.Message(events...)
	if err != nil {
		return err
	}
	s.mu.Lock()
	limiter := s.limiter
	s.mu.Unlock()
	if limiter != nil {
		if err := limiter.Wait(ctx); err != nil {
			return errNotSent
		}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL, bytes.NewReader(m.Body))
	if err != nil {
		return err
	}
	request.Header = m.Header
	request.Header.Set("User-Agent", "eventcenter/"+s.m.Version)
	request.Header.Set("WebHook-Request-Origin", s.m.Settings.Origin)
	sign(request.Header, secrets, idOf(items), time.Now(), m.Body)
	_, err = ask(ctx, s.client, request)
	return err
}
