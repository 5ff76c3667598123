package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"sync"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// A file has two indexes: of identities, to find duplicates, and of nodes. As indexes of SQLite they would cost more than
// the events: the next key is anywhere in them, so that each event changes a page, of 4 KiB, in both. Here the entries of
// the newest events are in memory, and are written together, sorted, as a run. What a killed process had in memory is read
// from the events again.

// block is how many bytes of a run are in one row, more only where one key has more.
const block = 4 << 10

// by says what an index is of.
type by int64

const (
	byIdentity by = iota
	byNode
	indexes // how many there are
)

// entry says that an event has a key, by its hash: what is found is compared.
type entry struct {
	hash   int64
	offset uint64
}

const entryBytes = 16

// index is that of one file.
type index struct {
	mu     sync.RWMutex     // guards what follows
	runs   []uint64         // the last offset of each, in order
	recent [indexes][]entry // of the events after the last run, in the order of offsets
}

// load reads which runs there are, and the events after them.
func (x *index) load(ctx context.Context, db *sql.DB) error {
	if err := each(ctx, db, func(rows *sql.Rows) error {
		var last int64
		err := rows.Scan(&last)
		x.runs = append(x.runs, uint64(last))
		return err
	}, "SELECT DISTINCT last FROM runs ORDER BY last"); err != nil {
		return err
	}
	return each(ctx, db, func(rows *sql.Rows) error {
		var offset int64
		var source, id, node string
		err := rows.Scan(&offset, &source, &id, &node)
		x.recent[byIdentity] = append(x.recent[byIdentity], entry{identityOf(source, id).hash(), uint64(offset)})
		x.recent[byNode] = append(x.recent[byNode], entry{hash(node), uint64(offset)})
		return err
	}, "SELECT offset, source, id, node FROM events WHERE offset > ? ORDER BY offset", int64(x.indexed()))
}

type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// each calls use for each row of the answer.
func each(ctx context.Context, db querier, use func(*sql.Rows) error, query string, args ...any) error {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := use(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// indexed is the offset up to which the runs go.
func (x *index) indexed() uint64 {
	if len(x.runs) == 0 {
		return 0
	}
	return x.runs[len(x.runs)-1]
}

// writeRun sorts entries and writes them as one run, up to an offset.
func writeRun(ctx context.Context, insert *sql.Stmt, of by, last uint64, entries []entry) error {
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.offset, b.offset))
	})
	for rest := entries; len(rest) > 0; {
		n := min(len(rest), block/entryBytes)
		for n < len(rest) && rest[n].hash == rest[n-1].hash {
			n++
		}
		text := make([]byte, 0, n*entryBytes)
		for _, e := range rest[:n] {
			text = binary.BigEndian.AppendUint64(text, uint64(e.hash))
			text = binary.BigEndian.AppendUint64(text, e.offset)
		}
		if _, err := insert.ExecContext(ctx, int64(last), int64(of), rest[0].hash, text); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// mergeEvents is how many events a file may have whose runs are merged, 8 MiB of memory for a moment.
const mergeEvents = 512 << 10

// merge makes one run of all of a file that nothing is written to any more, since each run is looked at by itself. It
// needs p.mu for writing.
func (p *partition) merge(ctx context.Context, db *sql.DB) error {
	x := &p.index
	if len(x.runs) < 2 || x.indexed()-p.first >= mergeEvents {
		return nil
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // after the commit it does nothing
	insert, err := tx.PrepareContext(ctx, insertBlock)
	if err != nil {
		return err
	}
	for of := range indexes {
		var entries []entry
		err := each(ctx, tx, func(rows *sql.Rows) error {
			var text sql.RawBytes
			if err := rows.Scan(&text); err != nil {
				return err
			}
			return p.entries(text, func(e entry) { entries = append(entries, e) })
		}, `SELECT entries FROM runs WHERE "by" = ?`, int64(of))
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM runs WHERE "by" = ?`, int64(of)); err != nil {
			return err
		}
		if err := writeRun(ctx, insert, of, x.indexed(), entries); err != nil {
			return err
		}
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.runs = []uint64{x.indexed()}
	return nil
}

// add takes over what a transaction has committed. run is whether it has written a run.
func (x *index) add(added [indexes][]entry, run bool, last uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for of := range indexes {
		x.recent[of] = append(x.recent[of], added[of]...)
		if run {
			x.recent[of] = nil // who reads may still have the old ones
		}
	}
	if run {
		x.runs = append(x.runs, last)
	}
}

// offsets returns, run by run, which offsets of a span may be of events with one of the hashes: those of other keys with
// the same hash are among them. The runs come in the order of the span, the offsets of each in any. It needs p.mu.
func (p *partition) offsets(ctx context.Context, of by, hashes []int64, q span) iter.Seq2[[]uint64, error] {
	return func(yield func([]uint64, error) bool) {
		p.index.mu.RLock()
		runs, recent := p.index.runs, p.index.recent[of]
		p.index.mu.RUnlock()
		parts := len(runs) + 1
		for i := range parts {
			if q.Backward {
				i = parts - 1 - i
			}
			var found []uint64
			keep := func(e entry) {
				if e.offset > q.after && e.offset <= q.last {
					found = append(found, e.offset)
				}
			}
			var err error
			if i == len(runs) {
				from, _ := slices.BinarySearchFunc(recent, q.after+1, func(e entry, offset uint64) int {
					return cmp.Compare(e.offset, offset)
				})
				for _, e := range recent[from:] { // tens of thousands, for each event of a foreign sender
					if e.hash == hashes[0] || len(hashes) > 1 && slices.Contains(hashes, e.hash) {
						keep(e)
					}
				}
			} else if runs[i] > q.after && (i == 0 || runs[i-1] < q.last) {
				err = p.inRun(ctx, runs[i], of, hashes, keep)
			}
			if (len(found) > 0 || err != nil) && !yield(found, err) {
				return
			}
		}
	}
}

const findBlock = `SELECT entries FROM runs WHERE last = ? AND "by" = ? AND first <= ? ORDER BY first DESC LIMIT 1`

// inRun gives the entries of the blocks in which those of the hashes would be.
func (p *partition) inRun(ctx context.Context, run uint64, of by, hashes []int64, keep func(entry)) error {
	for _, h := range hashes {
		var text sql.RawBytes
		rows, err := p.rows(ctx, findBlock, int64(run), int64(of), h)
		if err != nil {
			return err
		}
		if rows.Next() {
			if err = rows.Scan(&text); err == nil {
				err = p.entries(text, func(e entry) {
					if e.hash == h {
						keep(e)
					}
				})
			}
		}
		if err = errors.Join(err, rows.Err(), rows.Close()); err != nil {
			return err
		}
	}
	return nil
}

// entries gives those of a block.
func (p *partition) entries(text []byte, use func(entry)) error {
	if len(text)%entryBytes != 0 {
		return fmt.Errorf("%s: a block of the index has %d bytes", p.path, len(text))
	}
	for ; len(text) > 0; text = text[entryBytes:] {
		use(entry{int64(binary.BigEndian.Uint64(text)), binary.BigEndian.Uint64(text[8:])})
	}
	return nil
}

// event returns what the partition has of the identity of an event.
func (p *partition) event(ctx context.Context, i identity, e journal.Event) (stored []byte, known bool, err error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.db == nil {
		return nil, false, nil
	}
	if p.version < withRuns {
		return p.oneEvent(ctx, `SELECT event FROM events WHERE dedup = ? AND source = ? AND id = ?`,
			i.hash(), e.Source, e.ID)
	}
	beyond := span{journal.Query{Backward: true}, max(p.first-1, e.After), math.MaxInt64}
	for offsets, err := range p.offsets(ctx, byIdentity, []int64{i.hash()}, beyond) {
		if err != nil {
			return nil, false, err
		}
		stored, known, err := p.oneEvent(ctx, `SELECT event FROM events
			WHERE offset IN (SELECT value FROM json_each(?)) AND source = ? AND id = ?`, listed(offsets), e.Source, e.ID)
		if known || err != nil {
			return stored, known, err
		}
	}
	return nil, false, nil
}

// oneEvent needs mu.
func (p *partition) oneEvent(ctx context.Context, query string, args ...any) (stored []byte, known bool, err error) {
	rows, err := p.rows(ctx, query, args...)
	if err != nil {
		return nil, false, err
	}
	defer rows.Close()
	if known = rows.Next(); known {
		err = rows.Scan(&stored)
	}
	return stored, known, errors.Join(err, rows.Err())
}

// chosen says which events of a query a partition may have, some at a time, nil once for any: then the query finds them
// itself. It needs p.mu.
func (p *partition) chosen(ctx context.Context, q span, nodes []string) iter.Seq2[[]uint64, error] {
	return func(yield func([]uint64, error) bool) {
		if len(nodes) == 0 || p.version < withRuns {
			yield(nil, nil)
			return
		}
		hashes := make([]int64, len(nodes))
		for i, node := range nodes {
			hashes[i] = hash(node)
		}
		var some []uint64
		for found, err := range p.offsets(ctx, byNode, hashes, q) {
			if some = append(some, found...); err != nil || len(some) > 2*q.Limit {
				if !yield(some, err) {
					return
				}
				some = nil
			}
		}
		if len(some) > 0 {
			yield(some, nil)
		}
	}
}

// listed writes offsets as SQLite's json_each reads them.
func listed(offsets []uint64) string {
	text := []byte{'['}
	for i, offset := range offsets {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendUint(text, offset, 10)
	}
	return string(append(text, ']'))
}
