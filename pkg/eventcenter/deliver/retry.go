package deliver

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// retry sends held events, in parallel with follow.
func (s *subscription) retry(ctx context.Context) {
	for ctx.Err() == nil {
		if due, pause := s.due(); len(due) == 0 {
			wait(ctx, pause, s.retryNow, nil)
			continue
		}
		if !s.open(ctx) {
			wait(ctx, saveEvery, s.retryNow, nil)
			continue
		}
		due, _ := s.due()
		var all sync.WaitGroup
		for _, h := range due {
			all.Go(func() { s.goOn(ctx, h) })
		}
		all.Wait()
		s.save(ctx, false)
	}
}

// due returns those of Held that are due, the most overdue first. If none is, pause is how long to wait.
func (s *subscription) due() (due []*held, pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.Paused != "" || len(s.state.Held) == 0 {
		return nil, idleWait
	}
	sorted := slices.SortedStableFunc(slices.Values(s.state.Held), func(a, b *held) int { return a.Next.Compare(b.Next) })
	n := 0
	for n < min(parallel, len(sorted)) && !sorted[n].Next.After(time.Now()) {
		n++
	}
	return sorted[:n], time.Until(sorted[0].Next)
}

// goOn sends the events of h until one fails or none is left.
func (s *subscription) goOn(ctx context.Context, h *held) {
	send := s.laneOn
	if h.Event != nil || h.DeadLetter != "" {
		send = s.single
	}
	for more := true; more && ctx.Err() == nil; {
		var err error
		if more, err = send(ctx, h); err != nil {
			s.m.Log.Error("read the held events of a subscription failed", "subscription", s.Name, "err", err)
			s.mu.Lock()
			h.Next = time.Now().Add(backoff(6))
			s.mu.Unlock()
		}
	}
}

// single sends an event about a gap, or a dead letter unless somebody has deleted it.
func (s *subscription) single(ctx context.Context, h *held) (more bool, err error) {
	text := h.Event
	if text == nil {
		var l DeadLetter
		if l, err = s.m.DeadLetter(ctx, s.Name, h.DeadLetter); err != nil && !errors.Is(err, ErrUnknown) {
			return false, err
		}
		text = l.Event
	}
	if err == nil && !s.sent(ctx, h, text) {
		return false, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.release(h)
	s.dirty = true
	return false, nil
}

// sent sends an event outside the lanes, and reports whether it is done: delivered, or a dead letter.
func (s *subscription) sent(ctx context.Context, h *held, text json.RawMessage) bool {
	err := s.send(ctx, []item{{h.ID, text}})
	switch {
	case errors.Is(err, errNotSent):
		return false
	case err == nil:
		s.m.delivered(ctx, s, h)
		return true
	}
	return s.failedHeld(h, err) && (h.DeadLetter != "" || s.m.bury(ctx, s, deadLetterOfGap(s, h), h))
}

// laneOn sends the next events of a held node. more reports whether the caller may continue at once.
func (s *subscription) laneOn(ctx context.Context, h *held) (more bool, err error) {
	s.mu.Lock()
	after, upTo := h.After, s.claimed
	s.mu.Unlock()
	q := journal.Query{After: after, Limit: pageEvents, Filter: s.Filter}
	if h.Node != "" {
		q.Filter = journal.Filter{}
		maps.Copy(q.Filter, s.Filter)
		q.Filter[journal.Cluster], q.Filter[journal.Node] = []string{h.Cluster}, []string{h.Node}
	}
	page, err := s.m.read(ctx, q)
	if trimmed, ok := errors.AsType[*journal.TrimmedError](err); ok {
		s.mu.Lock()
		s.hold(s.gap(journal.Gap{From: after + 1, To: trimmed.Oldest - 1, Reason: "older than what is kept"}, *h))
		h.After = trimmed.Oldest - 1
		h.succeeded()
		s.mu.Unlock()
		return true, nil
	}
	if err != nil {
		return false, err
	}
	for _, r := range page.Records {
		if r.Offset > upTo {
			break
		}
		of := laneOf(r)
		s.mu.Lock()
		wanted := of.key() == h.key() && s.wants(r)
		s.mu.Unlock()
		if wanted && !s.next(ctx, h, r) {
			return false, nil
		}
		s.mu.Lock()
		h.After, s.dirty = r.Offset, true
		s.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h.After = max(h.After, min(page.Next, upTo))
	s.dirty = true
	if h.After >= s.claimed {
		s.state.release(h) // from here on the node is no longer held
		return false, nil
	}
	return true, nil
}

// next sends one event of a held node, and reports whether the event is done: delivered, or a dead letter.
func (s *subscription) next(ctx context.Context, h *held, r journal.Record) bool {
	if !s.open(ctx) {
		return false
	}
	err := s.send(ctx, []item{s.itemOf(r)})
	if errors.Is(err, errNotSent) || err != nil && (!s.failedHeld(h, err) || !s.m.bury(ctx, s, deadLetterOf(s, r), h)) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h.succeeded()
	return true
}

// failedHeld records a failure, and reports whether it was the last attempt.
func (s *subscription) failedHeld(h *held, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.failed(time.Now(), err)
	s.dirty = true
	return time.Since(h.Since) >= s.m.Settings.GiveUpAfter
}
