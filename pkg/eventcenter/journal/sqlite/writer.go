package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

const (
	maxWaiting = 1024 // requests that wait for the writer
	maxGroup   = 5000 // events in one transaction; more only if one request has more
)

// request is one batch to be written.
type request struct {
	events []journal.Event
	result journal.Appended
	err    error
	done   chan struct{}
}

type streamKey struct{ source, stream string }

type watermark struct {
	highest uint64
	seen    time.Time
}

// writer is used by the writing goroutine only.
type writer struct {
	part    *partition
	day     string
	db      *sql.DB
	streams map[streamKey]watermark
	exact   bool // the watermarks may be incomplete: everything is looked up
	bare    bool // part lacks the watermarks of the files before it: they come with its first events
}

func (w *writer) close() error {
	if w.db == nil {
		return nil
	}
	err := w.db.Close()
	w.db = nil
	return err
}

// Append stores a batch whole or not at all, and returns when it is durable. Known events are not stored again. If ctx
// ends first, the batch may be stored or not: sending it again is harmless.
func (s *Store) Append(ctx context.Context, events []journal.Event) (journal.Appended, error) {
	r := &request{events: events, done: make(chan struct{})}
	select {
	case s.requests <- r:
	case <-ctx.Done():
		return journal.Appended{}, ctx.Err()
	case <-s.stopping:
		return journal.Appended{}, ErrClosed
	}
	select {
	case <-r.done:
		return r.result, r.err
	case <-ctx.Done():
		return journal.Appended{}, ctx.Err()
	case <-s.stopped:
		return journal.Appended{}, ErrClosed
	}
}

// write is the writing goroutine.
func (s *Store) write() {
	defer close(s.stopped)
	for {
		select {
		case <-s.stopping:
			return
		case r := <-s.requests:
			group, n := []*request{r}, len(r.events)
			for n < maxGroup && len(s.requests) > 0 {
				r := <-s.requests
				group, n = append(group, r), n+len(r.events)
			}
			s.commitGroup(group)
		}
	}
}

func (s *Store) commitGroup(group []*request) {
	err := s.room()
	var derived []journal.Event
	if err == nil {
		derived, err = s.commit(group, false)
	}
	if errors.Is(err, errIndex) { // a watermark did not tell of a stored event: look up each one
		derived, err = s.commit(group, true)
	}
	if p := s.writer.part; err != nil && isDamage(err) && p != nil && !p.damaged.Load() {
		s.setDamaged(p, err)
		derived, err = s.commit(group, true) // into a new file
	}
	if err != nil && isFull(err) {
		err = s.full(err)
	}
	for err == nil && len(derived) > 0 {
		var failed error
		derived, failed = s.commit([]*request{{events: derived}}, false)
		if failed != nil { // they are derived again after a restart
			s.Log.Error("append derived events failed", "err", failed)
		}
	}
	for _, r := range group {
		r.err = err
		close(r.done)
	}
}

// publish makes readers see the committed records, and returns the events derived from them.
func (s *Store) publish(records []journal.Record) []journal.Event {
	last := records[len(records)-1]
	if s.mark != nil {
		if err := s.writeMark(last.Offset); err != nil {
			s.Log.Error("write the mark of the newest offset failed", "err", err)
		}
	}
	s.mu.Lock()
	s.newest, s.writer.part.last, s.writer.part.newest = last.Offset, last.Offset, last.Received
	changed := s.changed
	s.changed = make(chan struct{})
	s.mu.Unlock()
	close(changed)
	if s.Appended == nil {
		return nil
	}
	return s.Appended(records)
}

// commit appends the batches in one transaction, and returns the events derived from the new records.
func (s *Store) commit(group []*request, exact bool) ([]journal.Event, error) {
	ctx := context.Background() // a transaction is finished even if its requests are cancelled
	batches := make([][]journal.Event, len(group))
	for i, r := range group {
		batches[i] = r.events
	}
	records, results, err := s.plan(ctx, s.Now().Truncate(time.Millisecond), batches, exact)
	if err != nil {
		return nil, err
	}
	for i, r := range group {
		r.result = results[i]
	}
	if len(records) == 0 {
		return nil, nil
	}
	return s.put(ctx, records, Position{})
}

// put stores records of a day, with a copy's new position unless that is zero, and returns the events derived from
// them.
func (s *Store) put(ctx context.Context, records []journal.Record, at Position) ([]journal.Event, error) {
	first, newest := records[0].Offset, s.Bounds().Newest
	if first <= newest {
		return nil, fmt.Errorf("offset %d comes after %d", first, newest)
	}
	if err := s.roll(ctx, records[0].Received, first); err != nil {
		return nil, err
	}
	if err := s.store(ctx, records, at); err != nil {
		return nil, err
	}
	if newest > 0 && first > newest+1 {
		s.addGap(journal.Gap{From: newest + 1, To: first - 1, Reason: "missing in the stream"})
	}
	return s.publish(records), nil
}

// openWriter opens the newest partition for writing. A damaged one is left unchanged.
func (s *Store) openWriter(ctx context.Context) error {
	s.writer.streams = map[streamKey]watermark{}
	for _, p := range slices.Backward(s.parts) {
		err := readStreams(ctx, p.db, s.writer.streams)
		if err != nil {
			s.Log.Error("load the watermarks of streams failed: looking up every event", "file", p.path, "err", err)
			s.writer.exact = true
		} else if p.last >= p.first || len(s.writer.streams) > 0 { // older versions gave an empty file none
			break
		}
	}
	if len(s.parts) == 0 {
		return nil
	}
	p := s.parts[len(s.parts)-1]
	if p.damaged.Load() || p.last != s.newest {
		return nil // the next event begins a new one
	}
	if err := p.db.QueryRowContext(ctx, "SELECT day FROM meta").Scan(&s.writer.day); err != nil {
		return fmt.Errorf("%s: %w", p.path, err)
	}
	s.writer.bare = p.last < p.first
	return s.writeTo(ctx, p)
}

func (s *Store) writeTo(ctx context.Context, p *partition) error {
	db, err := open(p.path, writing)
	if err == nil {
		_, err = db.ExecContext(ctx, "PRAGMA journal_mode=WAL")
	}
	if err == nil && s.Copy != "" { // flushes only at each checkpoint of the log
		_, err = db.ExecContext(ctx, "PRAGMA synchronous=NORMAL; "+positionSchema)
	}
	s.writer.part, s.writer.db = p, db
	return err
}

// readStreams adds the watermarks of a file.
func readStreams(ctx context.Context, db *sql.DB, to map[streamKey]watermark) error {
	return each(ctx, db, func(rows *sql.Rows) error {
		var key streamKey
		var highest, seen int64
		err := rows.Scan(&key.source, &key.stream, &highest, &seen)
		mark := to[key]
		to[key] = watermark{max(mark.highest, uint64(highest)), time.UnixMilli(max(seen, mark.seen.UnixMilli()))}
		return err
	}, "SELECT source, stream, highest, seen FROM streams")
}
