package sqlite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// Copied is the result of a copy.
type Copied struct {
	Journal string        `json:"journal"`
	Newest  uint64        `json:"newest,string"`
	Events  int           `json:"events"`
	Gaps    []journal.Gap `json:"gaps"` // of lost events: the copy has the rest
}

// Copy makes a sound copy of each file of the journal in a directory, one after the other, with all readable records up
// to the newest of now, and passes it to use. Another process may have the journal open. The files may have older formats.
func Copy(ctx context.Context, from, to string, log *slog.Logger, use func(file string) error) (done Copied,
	err error) {
	s, err := Open(ctx, Options{Dir: from, Log: log, ReadOnly: true, convert: true})
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	marks := map[streamKey]watermark{}
	for _, p := range s.partitions() {
		file := filepath.Join(to, filepath.Base(p.path))
		n, err := s.rescue(ctx, p, file, marks)
		if err != nil {
			return done, fmt.Errorf("copy %s: %w", p.path, err)
		}
		if err := use(file); err != nil {
			return done, err
		}
		done.Events += n
	}
	done.Journal, done.Newest, done.Gaps = s.id, s.newest, s.Health().Gaps
	return done, nil
}

// Salvage copies all readable records of the journal in a directory into a new one. UUID and offsets stay, so that
// consumers continue from their cursors, and lost offsets are not reused.
func Salvage(ctx context.Context, from, to string, log *slog.Logger) (done Copied, err error) {
	if err := os.Mkdir(to, 0o700); err != nil {
		return done, err
	}
	if done, err = Copy(ctx, from, to, log, func(string) error { return nil }); err != nil {
		return done, err
	}
	names := []string{"uuid"}
	if IsCopy(from) {
		names = append(names, copyMark)
	}
	err = os.WriteFile(filepath.Join(to, markFile), markText(done.Newest), 0o600)
	for _, name := range names {
		err = errors.Join(err, writeFile(filepath.Join(to, name), done.Journal+"\n"))
	}
	return done, err
}

// rescue copies the readable records of a partition into a new file, and its watermarks with those of earlier files.
func (s *Store) rescue(ctx context.Context, p *partition, to string, marks map[streamKey]watermark) (n int, err error) {
	var day string
	if err := p.db.QueryRowContext(ctx, "SELECT day FROM meta").Scan(&day); err != nil && !isDamage(err) {
		return 0, err
	}
	if err := readStreams(ctx, p.db, marks); err != nil && !isDamage(err) {
		return 0, err
	}
	db, err := createFile(ctx, to, day, marks)
	if err != nil {
		return 0, err
	}
	into := &Store{Options: Options{Copy: s.id}, writer: writer{db: db, streams: marks}}
	defer func() { err = errors.Join(err, into.writer.close()) }()
	add := func(records []journal.Record, _ time.Duration) error {
		n += len(records)
		return into.store(ctx, records, Position{})
	}
	for at, q := range s.spans(journal.Query{Limit: eachLimit}, s.Bounds().Newest) {
		if at == p {
			err = s.walk(ctx, p, q, add)
		}
	}
	return n, err
}
