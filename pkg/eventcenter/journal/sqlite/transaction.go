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

// transaction is one group being written.
type transaction struct {
	store   *Store
	tx      *sql.Tx // nil: only planned
	insert  *sql.Stmt
	now     time.Time
	next    uint64                  // offset
	streams map[streamKey]watermark // the changed ones

	records []journal.Record
	planned map[identity][]byte // the events of a planned transaction
}

// plan returns a transaction that stores no data.
func (s *Store) plan() *transaction {
	return &transaction{store: s, planned: map[identity][]byte{}, streams: map[streamKey]watermark{}}
}

// commit ends the transaction.
func (t *transaction) commit(ctx context.Context) error {
	if err := saveStreams(ctx, t.tx, t.streams); err != nil {
		return err
	}
	if err := t.tx.Commit(); err != nil {
		return err
	}
	maps.Copy(t.store.writer.streams, t.streams)
	return nil
}

func (t *transaction) batch(ctx context.Context, events []journal.Event) (done journal.Appended, err error) {
	for _, e := range inOrder(events) {
		key := streamKey{e.Source, e.Stream}
		mark, ok := t.streams[key]
		if !ok {
			mark = t.store.writer.streams[key]
		}
		var stored []byte
		known := false
		if e.Stream == "" || e.Sequence <= mark.highest || t.store.writer.exact {
			if stored, known, err = t.find(ctx, e); err != nil {
				return done, err
			}
		}
		r := journal.Record{Offset: t.next, Received: t.now, Event: e}
		if !known {
			if stored, known, err = t.add(ctx, r); err != nil {
				return done, err
			}
		}
		if known {
			done.Duplicates++
			if !bytes.Equal(stored, e.JSON) {
				done.Conflicts++
			}
			continue
		}
		if e.Stream != "" {
			t.streams[key] = watermark{max(mark.highest, e.Sequence), t.now}
		}
		t.records = append(t.records, r)
		t.next, done.New = t.next+1, done.New+1
	}
	return done, nil
}

// add stores a record in the newest file, unless its identity is already stored.
func (t *transaction) add(ctx context.Context, r journal.Record) (stored []byte, known bool, err error) {
	if t.tx == nil {
		t.planned[identityOf(r.Source, r.ID)] = r.JSON
		return nil, false, nil
	}
	if known, err = t.row(ctx, r); !known || err != nil {
		return nil, false, err
	}
	err = t.tx.QueryRowContext(ctx, findEvent, r.Source, r.ID).Scan(&stored)
	if errors.Is(err, sql.ErrNoRows) {
		err = errIndex // the index has an event that does not exist
	}
	return stored, true, err
}

// row inserts a record. known reports whether its identity is in the file already, so it was not inserted.
func (t *transaction) row(ctx context.Context, r journal.Record) (known bool, err error) {
	done, err := t.insert.ExecContext(ctx, int64(r.Offset), r.Received.UnixMilli(), checksum(r.Offset, r.JSON), r.Source,
		r.ID, r.Type, r.Cluster, r.Node, r.Severity, r.Check, r.Reason, r.Stream, int64(r.Sequence), r.JSON)
	if err != nil {
		return false, err
	}
	n, err := done.RowsAffected()
	return n == 0, err
}

// rows inserts records of another journal, with the watermarks of their streams. Its store has no writing goroutine.
func (t *transaction) rows(ctx context.Context, records []journal.Record) error {
	for _, r := range records {
		if _, err := t.row(ctx, r); err != nil {
			return fmt.Errorf("offset %d: %w", r.Offset, err)
		}
		if r.Stream != "" {
			key := streamKey{r.Source, r.Stream}
			highest := max(t.streams[key].highest, t.store.writer.streams[key].highest, r.Sequence)
			t.streams[key] = watermark{highest, r.Received}
		}
	}
	return nil
}

const findEvent = `SELECT event FROM events WHERE source = ? AND id = ?`

// find returns the stored event with the same identity: from the files before the newest or, if only planned, from any.
func (t *transaction) find(ctx context.Context, e journal.Event) (stored []byte, known bool, err error) {
	i := identityOf(e.Source, e.ID)
	if stored, known = t.planned[i]; known {
		return stored, true, nil
	}
	for _, p := range slices.Backward(t.store.partitions()) {
		if t.tx != nil && p == t.store.writer.part {
			continue // the insertion will detect it
		}
		stored, known, err = p.find(ctx, i, e)
		if known || err != nil && !isDamage(err) {
			return stored, known, err
		}
	}
	return nil, false, nil
}

// find returns the event with the same identity from the partition.
func (p *partition) find(ctx context.Context, i identity, e journal.Event) (stored []byte, known bool, err error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.db == nil || !p.known.mayHave(i) {
		return nil, false, nil
	}
	err = p.db.QueryRowContext(ctx, findEvent, e.Source, e.ID).Scan(&stored)
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
