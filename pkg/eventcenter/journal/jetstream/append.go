package jetstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/sqlite"
)

const (
	groupWait  = 5 * time.Millisecond
	groupBytes = 256 << 10
	maxWaiting = 1024 // requests that wait for their group

	appendLimit  = 8 * time.Second // for a batch: most elections end earlier
	publishLimit = appendLimit / 4 // for one attempt
	pollEvery    = time.Second     // poll for new messages, in case a hint was lost
)

// request is one batch to be appended.
type request struct {
	ctx    context.Context // Append's, which waits
	events []journal.Event
	term   uint64 // of the worker that sent it; 0: not a worker
	result journal.Appended
	err    error
	done   chan struct{}
}

func (r *request) size() (n int) {
	for _, e := range r.events {
		n += len(e.JSON)
	}
	return n
}

// Append stores a batch whole or not at all, and returns when it is durable on a majority of the replicas. Known events
// are not stored again. If it returns ErrUnavailable, or if ctx ends first, the batch may be stored or not: sending it
// again is harmless.
func (s *Store) Append(ctx context.Context, events []journal.Event) (journal.Appended, error) {
	return s.append(ctx, &request{events: events})
}

// AppendAs is Append for the worker: once another worker has taken over, it fails with ErrFenced.
func (s *Store) AppendAs(ctx context.Context, term uint64, events []journal.Event) (journal.Appended, error) {
	return s.append(ctx, &request{events: events, term: term})
}

// Take makes this process the worker: from now on, workers with smaller terms can append no events.
func (s *Store) Take(ctx context.Context, term uint64) error {
	_, err := s.append(ctx, &request{term: term})
	if err == nil {
		s.mu.Lock()
		s.term = term
		s.mu.Unlock()
	}
	return err
}

// Leave gives up the worker role.
func (s *Store) Leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.term = 0
}

func (s *Store) append(ctx context.Context, r *request) (journal.Appended, error) {
	if err := s.unavailable(); err != nil {
		return journal.Appended{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.Within, journal.ErrUnavailable)
	defer cancel()
	r.ctx, r.done = ctx, make(chan struct{})
	select {
	case s.requests <- r:
	case <-ctx.Done():
		return journal.Appended{}, context.Cause(ctx)
	case <-s.ended:
		return journal.Appended{}, ErrClosed
	}
	select {
	case <-r.done:
		return r.result, r.err
	case <-ctx.Done():
		return journal.Appended{}, context.Cause(ctx)
	case <-s.ended:
		return journal.Appended{}, ErrClosed
	}
}

// run is the goroutine that writes to the stream and to the copy.
func (s *Store) run(ctx context.Context) {
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	for {
		var derived []journal.Event
		var err error
		select {
		case <-ctx.Done():
			return
		case r := <-s.requests:
			derived = s.commit(ctx, s.group(ctx, r))
		case <-s.hints:
			derived, err = s.catchUp(ctx)
		case <-poll.C:
			derived, err = s.catchUp(ctx)
		}
		if err != nil {
			s.note(ctx, err)
		}
		s.appendDerived(ctx, derived)
	}
}

// appendDerived appends derived events, if this process is the worker.
func (s *Store) appendDerived(ctx context.Context, derived []journal.Event) {
	for len(derived) > 0 && ctx.Err() == nil {
		s.mu.Lock()
		term := s.term
		s.mu.Unlock()
		if term == 0 {
			return // the worker does it
		}
		limited, cancel := context.WithTimeout(ctx, s.Within)
		r := &request{ctx: limited, events: derived, term: term, done: make(chan struct{})}
		derived = s.commit(ctx, []*request{r})
		cancel()
		if r.err != nil {
			s.Log.Error("append derived events failed, retrying with the next event", "err", r.err)
			return
		}
	}
}

// group collects the requests that go into one message.
func (s *Store) group(ctx context.Context, r *request) []*request {
	group, size := []*request{r}, r.size()
	full := time.NewTimer(groupWait)
	defer full.Stop()
	for size < groupBytes {
		select {
		case r := <-s.requests:
			group, size = append(group, r), size+r.size()
		case <-full.C:
			return group
		case <-ctx.Done():
			return group
		}
	}
	return group
}

// commit appends a group and answers its requests. It returns events derived from the new records of the copy.
func (s *Store) commit(ctx context.Context, group []*request) (derived []journal.Event) {
	for {
		group = s.waiting(group)
		if len(group) == 0 {
			return derived
		}
		done, more, err := s.attempt(ctx, group)
		derived = append(derived, more...)
		s.note(ctx, err)
		if done || errors.Is(err, journal.ErrFull) {
			for _, r := range group {
				r.err = err
				close(r.done)
			}
			return derived
		}
		if err != nil {
			select {
			case <-time.After(retryEvery / 5):
			case <-ctx.Done():
				return derived
			}
		}
	}
}

// waiting returns the requests that still wait, may append, and need not wait for other replicas.
func (s *Store) waiting(group []*request) []*request {
	unavailable := s.unavailable()
	return slices.DeleteFunc(group, func(r *request) bool {
		switch {
		case r.ctx.Err() != nil:
			r.err = context.Cause(r.ctx)
		case unavailable != nil:
			r.err = unavailable
		case r.term != 0 && r.term < s.at.Term:
			r.err = ErrFenced
		default:
			return false
		}
		close(r.done)
		return true
	})
}

// attempt plans a message and publishes it. done reports whether the whole group is durable.
func (s *Store) attempt(ctx context.Context, group []*request) (done bool, derived []journal.Event, err error) {
	batches, term := make([][]journal.Event, len(group)), uint64(0)
	for i, r := range group {
		batches[i], term = r.events, max(term, r.term)
	}
	records, results, err := s.copy.Plan(ctx, s.Now(), batches)
	if err != nil {
		return false, nil, fmt.Errorf("plan: %w", err)
	}
	if len(records) > 0 || term > s.at.Term { // a new worker's term is stored even without events
		next := s.copy.Bounds().Newest + 1
		data, err := encode(records, next, term)
		if err != nil {
			return false, nil, err
		}
		limited, cancel := context.WithTimeout(ctx, s.Within/4)
		ack, err := s.js.Publish(limited, subject, data, jetstream.WithExpectLastSequence(s.at.Sequence),
			jetstream.WithExpectStream(Stream), jetstream.WithRetryAttempts(0))
		cancel()
		if wrongLast(err) || err == nil && ack.Sequence != s.at.Sequence+1 { // another replica was faster
			before := s.at.Sequence
			derived, err = s.catchUp(ctx)
			if err == nil && s.at.Sequence == before {
				err = errBehind
			}
			return false, derived, err
		}
		if err != nil {
			return false, nil, fmt.Errorf("publish: %w", err)
		}
		if err := s.Conn.Publish(stored, nil); err != nil {
			s.Log.Warn("notify other replicas of new events failed: they poll every second", "err", err)
		}
		derived, err = s.apply(ctx, []message{{ack.Sequence, records, term}})
		if err != nil { // durable, but not in the copy: readers of this replica must not miss it
			return false, derived, err
		}
	}
	for i, r := range group {
		r.result = results[i]
	}
	return true, derived, nil
}

// errBehind means that the stream has, or is about to get, messages that cannot be read here yet.
var errBehind = errors.New("the stream is ahead of what can be read here")

// wrongLast reports whether the stream has more messages than expected.
func wrongLast(err error) bool {
	e, ok := errors.AsType[*jetstream.APIError](err)
	const constant = 10164 // the newer of the two codes
	return ok && (e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || e.ErrorCode == constant)
}

// message is one of the stream.
type message struct {
	sequence uint64
	records  []journal.Record
	term     uint64
}

// apply stores messages in the copy and publishes them. It skips offsets that are already used.
func (s *Store) apply(ctx context.Context, messages []message) ([]journal.Event, error) {
	at, newest := s.at, s.copy.Bounds().Newest
	var records []journal.Record
	for _, m := range messages {
		switch {
		case m.sequence <= at.Sequence:
			continue
		case at.Sequence > 0 && m.sequence > at.Sequence+1: // trimmed: no other messages are ever removed
			return nil, journal.ErrAnew
		}
		at = sqlite.Position{Sequence: m.sequence, Term: max(at.Term, m.term)}
		for _, r := range m.records {
			if r.Offset > newest { // others are already in the copy, from before a restart
				records, newest = append(records, r), r.Offset
			}
		}
	}
	err := s.copy.Put(ctx, records, at)
	if err != nil { // it may have stored the first days of the records
		end := s.copy.Bounds().Newest
		records = slices.DeleteFunc(records, func(r journal.Record) bool { return r.Offset > end })
		err = fmt.Errorf("the copy of the journal: %w", err)
	} else {
		s.at = at
		s.mu.Lock()
		s.state.applied = at.Sequence
		s.mu.Unlock()
	}
	if len(records) == 0 || s.Appended == nil {
		return nil, err
	}
	return s.Appended(records), err
}
