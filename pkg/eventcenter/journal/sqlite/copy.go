package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// copyMark is the file that says of a journal that it is a copy.
const copyMark = "copy"

// ErrOther means that a copy is of another journal.
var ErrOther = errors.New("the copy is of another journal")

// ErrOriginal means that there is a journal of its own where a copy is to be.
var ErrOriginal = errors.New("there is a SQLite journal of its own: \"eventcenter migrate\" takes it over")

// positionSchema is what a copy has beside a journal: up to where its original is in it.
const positionSchema = `CREATE TABLE IF NOT EXISTS position(id INTEGER PRIMARY KEY, sequence INTEGER NOT NULL,
	term INTEGER NOT NULL)`

// Position is up to where a copy has its original.
type Position struct {
	Sequence uint64 // of the last message that is in it
	Term     uint64 // of the newest worker that the messages name
}

// copyOrOriginal refuses to open a copy as a journal, and the reverse.
func (s *Store) copyOrOriginal() error {
	mark := filepath.Join(s.Dir, copyMark)
	_, err := os.Stat(mark)
	switch {
	case s.ReadOnly:
		return nil
	case s.Copy == "" && err == nil:
		return fmt.Errorf("%s: this is a replica's copy of a JetStream journal; it takes nothing by itself", s.Dir)
	case s.Copy == "" || err == nil:
		return nil
	}
	if _, err := os.Stat(filepath.Join(s.Dir, "uuid")); err == nil {
		return ErrOriginal
	}
	return writeFile(mark, "")
}

// IsCopy reports whether the journal in a directory is a copy.
func IsCopy(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, copyMark))
	return err == nil
}

// Position returns up to where a copy has its original.
func (s *Store) Position(ctx context.Context) (at Position, err error) {
	for _, p := range slices.Backward(s.partitions()) {
		var sequence, term int64
		p.mu.RLock()
		err := p.db.QueryRowContext(ctx, "SELECT sequence, term FROM position").Scan(&sequence, &term)
		p.mu.RUnlock()
		if err == nil {
			return Position{uint64(sequence), uint64(term)}, nil
		}
		if !errors.Is(err, sql.ErrNoRows) {
			return at, fmt.Errorf("position in %s: %w", p.path, err)
		}
	}
	return at, nil
}

// Damaged reports whether the structure of a file is damaged.
func (s *Store) Damaged() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.parts, func(p *partition) bool { return p.damaged != nil })
}

// Plan says what would become of batches: the records that are new, with the offsets that follow, and a result for each
// batch. It stores nothing.
func (s *Store) Plan(ctx context.Context, at time.Time, batches [][]journal.Event) ([]journal.Record,
	[]journal.Appended, error) {
	newest, received := s.end()
	at = at.Truncate(time.Millisecond).UTC()
	if at.Before(received) {
		at = received // by the clock of another replica
	}
	t := s.plan()
	t.now, t.next = at, newest+1
	results := make([]journal.Appended, len(batches))
	for i, events := range batches {
		var err error
		if results[i], err = t.batch(ctx, events); err != nil {
			return nil, nil, err
		}
	}
	for i := range results {
		results[i].Last = t.next - 1
	}
	return t.records, results, nil
}

// end returns the newest offset and when it was received.
func (s *Store) end() (newest uint64, received time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.parts) > 0 {
		received = s.parts[len(s.parts)-1].newest
	}
	return s.newest, received.UTC()
}

// Put adds records of the original, in the order of their offsets, and up to where they bring the copy. Offsets that
// they leave out are a gap.
func (s *Store) Put(ctx context.Context, records []journal.Record, at Position) error {
	if err := s.room(); err != nil {
		return err
	}
	for len(records) > 0 { // by days
		day, n := records[0].Received.UTC().Format(time.DateOnly), 1
		for n < len(records) && records[n].Received.UTC().Format(time.DateOnly) == day {
			n++
		}
		position := at
		if n < len(records) {
			position = Position{} // it comes with the rest
		}
		if err := s.put(ctx, records[:n], position); err != nil {
			if isFull(err) {
				return s.full(err)
			}
			return err
		}
		records = records[n:]
	}
	if s.writer.db != nil { // also where only the position has changed
		return s.savePosition(ctx, s.writer.db, at)
	}
	return nil
}

type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func (s *Store) savePosition(ctx context.Context, to execer, at Position) error {
	_, err := to.ExecContext(ctx, "INSERT OR REPLACE INTO position VALUES(1, ?, ?)", int64(at.Sequence),
		int64(at.Term))
	return err
}

func (s *Store) put(ctx context.Context, records []journal.Record, at Position) error {
	first, newest := records[0].Offset, s.Bounds().Newest
	if first <= newest {
		return fmt.Errorf("offset %d comes after %d", first, newest)
	}
	if err := s.roll(ctx, records[0].Received, first); err != nil {
		return err
	}
	t, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer t.tx.Rollback() // after the commit it does nothing
	for _, r := range records {
		if _, err := t.row(ctx, r); err != nil {
			return fmt.Errorf("offset %d: %w", r.Offset, err)
		}
		if r.Stream != "" {
			key := streamKey{r.Source, r.Stream}
			highest := max(t.streams[key].highest, s.writer.streams[key].highest, r.Sequence)
			t.streams[key] = watermark{highest, r.Received}
		}
	}
	if at != (Position{}) {
		if err := s.savePosition(ctx, t.tx, at); err != nil {
			return err
		}
	}
	if err := t.commit(ctx); err != nil {
		return err
	}
	if newest > 0 && first > newest+1 {
		s.addGap(journal.Gap{From: newest + 1, To: first - 1, Reason: "missing in the stream"})
	}
	s.tell(records)
	return nil
}
