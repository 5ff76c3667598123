package deliver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// errNotSent means that no request was made: the subscription was paused, or is about to end.
var errNotSent = errors.New("not sent")

// itemOf returns a record in the form in which it is sent.
func (s *subscription) itemOf(r journal.Record) item {
	return item{fmt.Sprintf("%s-%d", s.state.Journal, r.Offset), r.JSON}
}

// deliver sends the events of a page until each is delivered or its node held. It returns false if it gave up.
func (s *subscription) deliver(ctx context.Context, lanes []*lane) bool {
	if s.modeNow() == event.Batch && len(lanes) > 0 {
		if s.batches(ctx, lanes) {
			return true
		}
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

// batches sends all events in batches, in the order of offsets. It reports whether all were accepted.
func (s *subscription) batches(ctx context.Context, lanes []*lane) bool {
	var items []item
	size := 0
	flush := func() bool {
		taken := len(items) == 0 || s.open(ctx) && s.send(ctx, items) == nil
		items, size = nil, 0
		return taken
	}
	for _, r := range inOrder(lanes) {
		if size += len(r.JSON); size > batchBytes && !flush() {
			return false
		}
		items = append(items, s.itemOf(r))
	}
	return flush()
}

// inOrder merges the records of the lanes by offset. Each lane is already in order.
func inOrder(lanes []*lane) (all []journal.Record) {
	at := make([]int, len(lanes))
	for {
		next := -1
		for i, l := range lanes {
			if at[i] < len(l.records) && (next < 0 || l.records[at[i]].Offset < lanes[next].records[at[next]].Offset) {
				next = i
			}
		}
		if next < 0 {
			return all
		}
		all = append(all, lanes[next].records[at[next]])
		at[next]++
	}
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
	return s.state.Mode
}

// open waits until an event may be sent: the subscription is not paused, the target has not asked for a delay and has
// agreed to receive events. It returns false if it gave up.
func (s *subscription) open(ctx context.Context) bool {
	for ctx.Err() == nil {
		s.mu.Lock()
		wait, paused := time.Until(s.closed), s.state.Paused != ""
		s.mu.Unlock()
		switch {
		case paused:
			return false
		case wait > 0:
			s.pass(ctx, wait)
			continue
		}
		err := s.ask(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() == nil {
			s.blocked(err)
		}
	}
	return false
}

// pass waits without being woken: the wake channel is for the goroutine that follows the journal.
func (s *subscription) pass(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(min(d, idleWait)) // it may be paused in the meantime
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// blocked records why no event can be sent for now.
func (s *subscription) blocked(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures++
	wait := backoff(s.failures)
	if r, ok := errors.AsType[*event.RefusedError](err); ok {
		wait = max(wait, r.RetryAfter)
		if r.Status == http.StatusGone {
			s.pause("the target answered 410 Gone")
		}
	}
	s.closed = event.Later(s.closed, time.Now().Add(wait))
	if text := plain(err.Error()); text != s.problem {
		s.problem = text
		s.m.Log.Warn("send to a subscriber failed, waiting", "subscription", s.Name, "err", text)
	}
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
	for {
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
		if refused && mode == event.Batch && notABatch(r.Status) && s.nextMode(mode) {
			continue // either one event is refused or batches are: single events will show which
		}
		if errors.Is(err, errNotSent) {
			return err
		}
		return s.note(err, r, len(items))
	}
}

// notABatch reports whether a response refuses the batch, while single events may be accepted.
func notABatch(status int) bool {
	return status == http.StatusBadRequest || status == http.StatusUnprocessableEntity ||
		status == http.StatusRequestEntityTooLarge
}

// note counts an attempt and updates the state from its result.
func (s *subscription) note(err error, r *event.RefusedError, items int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.counts.delivered += uint64(items)
		s.failures = 0
		clear(s.fresh)
		if s.problem != "" {
			s.problem = ""
			s.m.Log.Info("subscriber accepts events again", "subscription", s.Name)
		}
		return nil
	}
	s.counts.failed++
	if text := plain(err.Error()); text != s.problem {
		s.problem = text
		s.m.Log.Warn("subscriber refused an event", "subscription", s.Name, "err", text)
	}
	if r != nil && r.RetryAfter > 0 {
		s.closed = event.Later(s.closed, time.Now().Add(r.RetryAfter))
	}
	if r != nil && r.Status == http.StatusGone {
		s.pause("the target answered 410 Gone")
		return errNotSent
	}
	return err
}

// nextMode falls back to a simpler mode. It returns false if there is none: the next attempt starts with the first.
func (s *subscription) nextMode(from event.Mode) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.Mode != from { // another goroutine has changed it
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
