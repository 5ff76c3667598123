package sqlite

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

const (
	insertEvent = `INSERT INTO events(` + columns + `) VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT DO NOTHING`
	saveStream  = `INSERT INTO streams VALUES(?, ?, ?, ?)
		ON CONFLICT DO UPDATE SET highest = excluded.highest, seen = excluded.seen`
	savePosition = `INSERT OR REPLACE INTO position VALUES(1, ?, ?)`
)

// store writes records into the newest file in one transaction, with the watermarks of their streams, and with the new
// position of a copy unless that is zero.
func (s *Store) store(ctx context.Context, records []journal.Record, at Position) error {
	tx, err := s.writer.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // no effect after the commit
	if err := s.insert(ctx, tx, records); err != nil {
		return err
	}
	changed := map[streamKey]watermark{}
	if s.writer.bare {
		maps.Copy(changed, s.writer.streams)
	}
	for _, r := range records {
		if r.Stream != "" {
			key := streamKey{r.Source, r.Stream}
			highest := max(changed[key].highest, s.writer.streams[key].highest, r.Sequence)
			changed[key] = watermark{highest, r.Received}
		}
	}
	if err := saveStreams(ctx, tx, changed); err != nil {
		return err
	}
	if at != (Position{}) {
		if _, err := tx.ExecContext(ctx, savePosition, int64(at.Sequence), int64(at.Term)); err != nil {
			return err
		}
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	maps.Copy(s.writer.streams, changed)
	s.writer.bare = false
	return nil
}

// insert inserts records. A copy leaves out those whose identity is in the file already.
func (s *Store) insert(ctx context.Context, tx *sql.Tx, records []journal.Record) error {
	statement, err := tx.PrepareContext(ctx, insertEvent)
	if err != nil {
		return err
	}
	for _, r := range records {
		done, err := statement.ExecContext(ctx, int64(r.Offset), r.Received.UnixMilli(), checksum(r.Offset, r.JSON),
			r.Source, r.ID, r.Type, r.Cluster, r.Node, r.Severity, r.Check, r.Reason, r.Stream, int64(r.Sequence), r.JSON)
		if err != nil {
			return fmt.Errorf("offset %d: %w", r.Offset, err)
		}
		inserted, err := done.RowsAffected()
		if err == nil && inserted == 0 && s.Copy == "" {
			err = errIndex // it has an event that plan has not found
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// plan computes the results of batches without storing them: the new records with their offsets, and a result for each
// batch. If exact is true, it looks up each event.
func (s *Store) plan(ctx context.Context, at time.Time, batches [][]journal.Event, exact bool) (
	records []journal.Record, results []journal.Appended, err error) {
	next, planned := s.Bounds().Newest+1, map[[2]string][]byte{} // by source and ID
	results = make([]journal.Appended, len(batches))
	for i, events := range batches {
		for _, e := range inOrder(events) {
			stored, known := planned[[2]string{e.Source, e.ID}]
			if !known && (exact || s.mayKnow(e)) {
				if stored, known, err = s.find(ctx, e); err != nil {
					return nil, nil, err
				}
			}
			if known {
				results[i].Duplicates++
				if !bytes.Equal(stored, e.JSON) {
					results[i].Conflicts++
				}
				continue
			}
			planned[[2]string{e.Source, e.ID}] = e.JSON
			records = append(records, journal.Record{Offset: next, Received: at, Event: e})
			next++
			results[i].New++
		}
	}
	for i := range results {
		results[i].Last = next - 1
	}
	return records, results, nil
}

// mayKnow reports whether an event may be stored: the watermark of its stream does not rule that out.
func (s *Store) mayKnow(e journal.Event) bool {
	return e.Stream == "" || s.writer.exact || e.Sequence <= s.writer.streams[streamKey{e.Source, e.Stream}].highest
}

const findEvent = `SELECT event FROM events WHERE source = ? AND id = ?`

// find returns the stored event with the same identity.
func (s *Store) find(ctx context.Context, e journal.Event) (stored []byte, known bool, err error) {
	i := identityOf(e.Source, e.ID)
	for _, p := range slices.Backward(s.partitions()) {
		var db *sql.DB
		if p == s.writer.part { // readers must not hold up the writer
			db = s.writer.db
		}
		if stored, known, err = p.find(ctx, db, i, e); err != nil && isDamage(err) {
			s.setUnwritable(p, err)
			stored, known, err = p.find(ctx, db, i, e) // the damage may be that of one read
		}
		if known || err != nil && !isDamage(err) {
			return stored, known, err
		}
	}
	return nil, false, nil
}

// find returns the event with the same identity from the partition. It asks db, or readers' connections if that is nil.
func (p *partition) find(ctx context.Context, db *sql.DB, i identity, e journal.Event) (stored []byte, known bool,
	err error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.db == nil || !p.known.mayHave(i) {
		return nil, false, nil
	}
	if db == nil {
		db = p.db
	}
	err = db.QueryRowContext(ctx, findEvent, e.Source, e.ID).Scan(&stored)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, false, nil
	}
	return stored, err == nil, err
}

// saveStreams stores watermarks.
func saveStreams(ctx context.Context, tx *sql.Tx, streams map[streamKey]watermark) error {
	if len(streams) == 0 {
		return nil
	}
	save, err := tx.PrepareContext(ctx, saveStream)
	if err != nil {
		return err
	}
	for _, key := range slices.SortedFunc(maps.Keys(streams), compareKeys) { // page by page
		mark := streams[key]
		_, err := save.ExecContext(ctx, key.source, key.stream, int64(mark.highest), mark.seen.UnixMilli())
		if err != nil {
			return err
		}
	}
	return nil
}

func compareKeys(a, b streamKey) int {
	return cmp.Or(cmp.Compare(a.source, b.source), cmp.Compare(a.stream, b.stream))
}

// inOrder sorts the events of each stream by sequence, within the positions that events of the stream have.
func inOrder(events []journal.Event) []journal.Event {
	places := map[streamKey][]int{}
	for i, e := range events {
		if e.Stream != "" {
			key := streamKey{e.Source, e.Stream}
			places[key] = append(places[key], i)
		}
	}
	ordered := slices.Clone(events)
	for _, at := range places {
		bySequence := func(a, b int) int { return cmp.Compare(events[a].Sequence, events[b].Sequence) }
		for i, from := range slices.SortedStableFunc(slices.Values(at), bySequence) {
			ordered[at[i]] = events[from]
		}
	}
	return ordered
}
