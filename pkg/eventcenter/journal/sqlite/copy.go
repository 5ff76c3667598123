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

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// copyMark is the file that marks a journal as a copy.
const copyMark = "copy"

// ErrOther means that the copy belongs to another journal.
var ErrOther = errors.New("the copy is of another journal")

// ErrOriginal means that the directory for a copy has an original journal.
var ErrOriginal = errors.New("there is a SQLite journal of its own: \"eventcenter migrate\" takes it over")

// errNoCopy is the error of calls that only a copy may get: another journal's writer uses the same watermarks.
var errNoCopy = errors.New("this journal is no copy: it takes events by Append only")

// positionSchema is the table of a copy's position in the original. It is empty in a journal that is no copy.
const positionSchema = `
CREATE TABLE IF NOT EXISTS position(id INTEGER PRIMARY KEY, sequence INTEGER NOT NULL,
	term INTEGER NOT NULL)`

// Position is a copy's position in its original.
type Position struct {
	Sequence uint64 // of the last message in the copy
	Term     uint64 // of the newest worker that the messages name
}

// copyOrOriginal refuses to open a copy as a journal, and vice versa.
func (s *Store) copyOrOriginal() error {
	switch isCopy := IsCopy(s.Dir); {
	case s.ReadOnly || isCopy == (s.Copy != ""):
		return nil
	case isCopy:
		return fmt.Errorf("%s: this is a replica's copy of a JetStream journal; it takes nothing by itself", s.Dir)
	}
	if _, err := os.Stat(filepath.Join(s.Dir, "uuid")); err == nil {
		return ErrOriginal
	}
	return writeFile(filepath.Join(s.Dir, copyMark), "")
}

// IsCopy reports whether the journal in a directory is a copy.
func IsCopy(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, copyMark))
	return err == nil
}

// Position returns the copy's position in its original.
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
	return slices.ContainsFunc(s.partitions(), func(p *partition) bool { return p.damaged.Load() })
}

// Plan computes the results of batches without storing them: the new records with their offsets, and a result for each
// batch.
func (s *Store) Plan(ctx context.Context, at time.Time, batches [][]journal.Event) ([]journal.Record,
	[]journal.Appended, error) {
	if s.Copy == "" {
		return nil, nil, errNoCopy
	}
	// The newest may come from another replica's clock. A record that the file has already would be a hole in each copy.
	return s.plan(ctx, event.Later(at.Truncate(time.Millisecond), s.received()).UTC(), batches, true)
}

// received returns when the newest record was received.
func (s *Store) received() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.parts) == 0 {
		return time.Time{}
	}
	return s.parts[len(s.parts)-1].newest
}

// Put stores records of the original, in the order of their offsets, and the copy's new position. Missing offsets
// become a gap.
func (s *Store) Put(ctx context.Context, records []journal.Record, at Position) error {
	if s.Copy == "" {
		return errNoCopy
	}
	if err := s.room(); err != nil {
		return err
	}
	if len(records) == 0 && s.writer.db != nil { // only the position has changed
		return s.store(ctx, nil, at)
	}
	for len(records) > 0 { // by day
		day, n := records[0].Received.UTC().Format(time.DateOnly), 1
		for n < len(records) && records[n].Received.UTC().Format(time.DateOnly) == day {
			n++
		}
		position := at
		if n < len(records) {
			position = Position{} // stored with the last records
		}
		if _, err := s.put(ctx, records[:n], position); err != nil {
			if isFull(err) {
				return s.full(err)
			}
			return err
		}
		records = records[n:]
	}
	return nil
}
