package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// Salvaged is the result of Salvage.
type Salvaged struct {
	Journal string        `json:"journal"`
	Newest  uint64        `json:"newest,string"`
	Events  int           `json:"events"`
	Gaps    []journal.Gap `json:"gaps"`
}

// Salvage copies all readable records of the journal in a directory into a new one. UUID and offsets stay, so that
// consumers continue from their cursors, and lost offsets are not reused.
func Salvage(ctx context.Context, from, to string, log *slog.Logger) (done Salvaged, err error) {
	s, err := Open(ctx, Options{Dir: from, Log: log, ReadOnly: true})
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := os.Mkdir(to, 0o700); err != nil {
		return done, err
	}
	marks := map[streamKey]watermark{}
	for _, p := range s.partitions() {
		n, err := s.rescue(ctx, p, filepath.Join(to, filepath.Base(p.path)), marks)
		if err != nil {
			return done, fmt.Errorf("salvage %s: %w", p.path, err)
		}
		done.Events += n
	}
	done.Journal, done.Newest, done.Gaps = s.id, s.newest, s.Health().Gaps
	names := []string{"uuid"}
	if IsCopy(from) {
		names = append(names, copyMark)
	}
	err = os.WriteFile(filepath.Join(to, markFile), markText(s.newest), 0o600)
	for _, name := range names {
		err = errors.Join(err, writeFile(filepath.Join(to, name), s.id+"\n"))
	}
	return done, err
}

// rescue copies the readable records of a partition into a new file, and its watermarks with those of earlier files.
func (s *Store) rescue(ctx context.Context, p *partition, to string, marks map[streamKey]watermark) (n int, err error) {
	var day string
	if err := p.db.QueryRowContext(ctx, "SELECT day FROM meta").Scan(&day); err != nil && !isDamage(err) {
		return 0, err
	}
	db, err := createFile(ctx, to, day)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := readStreams(ctx, p.db, marks); err != nil && !isDamage(err) {
		return 0, err
	}
	for at, q := range s.spans(journal.Query{Limit: eachLimit}) {
		if at != p {
			continue
		}
		err := s.walk(ctx, p, q, func(records []journal.Record, _ time.Duration) error {
			n += len(records)
			return s.putInto(ctx, db, records, marks)
		})
		if err != nil {
			return n, err
		}
	}
	return n, s.putInto(ctx, db, nil, marks)
}

// putInto adds records to a file, or all watermarks if there are no records.
func (s *Store) putInto(ctx context.Context, db *sql.DB, records []journal.Record, marks map[streamKey]watermark) error {
	return inTransaction(ctx, db, func(tx *sql.Tx) (err error) {
		t := transaction{store: s, tx: tx, streams: marks}
		if t.insert, err = tx.PrepareContext(ctx, insertEvent); err != nil {
			return err
		}
		if len(records) > 0 {
			return t.rows(ctx, records)
		}
		if t.save, err = tx.PrepareContext(ctx, saveStream); err != nil {
			return err
		}
		return t.saveStreams(ctx)
	})
}

func inTransaction(ctx context.Context, db *sql.DB, do func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // no effect after the commit
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit()
}
