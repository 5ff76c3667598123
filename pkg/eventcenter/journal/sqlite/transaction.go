package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"maps"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// transaction is one group on its way.
type transaction struct {
	store   *Store
	tx      *sql.Tx // nil: it is only planned
	ready   statements
	now     time.Time
	next    uint64                  // offset
	streams map[streamKey]watermark // what changes

	records    []journal.Record
	identities []identity          // of the records
	added      map[identity]uint64 // their contents
}

// plan begins a transaction that stores nothing.
func (s *Store) plan() *transaction {
	return &transaction{store: s, ready: statements{}, added: map[identity]uint64{}, streams: map[streamKey]watermark{}}
}

// commit ends the transaction. It writes a run of the index where so many events have none.
func (t *transaction) commit(ctx context.Context, events int) error {
	w := &t.store.writer
	x, last := &w.part.index, w.part.last
	var added [indexes][]entry
	for i, r := range t.records {
		added[byIdentity] = append(added[byIdentity], entry{t.identities[i].hash(), r.Offset})
		added[byNode] = append(added[byNode], entry{hash(r.Node), r.Offset})
		last = r.Offset
	}
	n := len(x.recent[byNode]) + len(t.records)
	run := n > 0 && n >= events
	if run {
		for of := range indexes {
			entries := slices.Concat(x.recent[of], added[of]) // this goroutine alone changes them
			if err := writeRun(ctx, t.ready[insertBlock], of, last, entries); err != nil {
				return err
			}
		}
		if err := t.saveStreams(ctx); err != nil {
			return err
		}
	}
	if err := t.tx.Commit(); err != nil {
		return err
	}
	x.add(added, run, last)
	w.known.add(t.added)
	for key, mark := range t.streams {
		w.streams[key], w.unsaved[key] = mark, true
	}
	if run {
		clear(w.unsaved)
	}
	return nil
}

func (t *transaction) batch(ctx context.Context, events []journal.Event) (done journal.Appended, err error) {
	for _, e := range inOrder(events) {
		key := streamKey{e.Source, e.Stream}
		mark, ok := t.streams[key]
		if !ok {
			mark = t.store.writer.streams[key]
		}
		i := identityOf(e.Source, e.ID)
		if e.Stream == "" || e.Sequence <= mark.highest || t.store.writer.exact {
			known, same, err := t.lookup(ctx, i, e)
			if err != nil {
				return done, err
			}
			if known {
				done.Duplicates++
				if !same {
					done.Conflicts++
				}
				continue
			}
		}
		r := journal.Record{Offset: t.next, Received: t.now, Event: e}
		if t.tx != nil {
			if err := t.row(ctx, r); err != nil {
				return done, err
			}
		}
		if e.Stream != "" {
			t.streams[key] = watermark{max(mark.highest, e.Sequence), t.now}
		}
		t.add(i, r)
		t.next, done.New = t.next+1, done.New+1
	}
	return done, nil
}

// add takes over what is not in the files yet.
func (t *transaction) add(i identity, r journal.Record) {
	t.records, t.identities = append(t.records, r), append(t.identities, i)
	t.added[i] = t.store.writer.known.hash(r.JSON)
}

func (t *transaction) row(ctx context.Context, r journal.Record) error {
	_, err := t.ready[insertEvent].ExecContext(ctx, int64(r.Offset), r.Received.UnixMilli(), checksum(r.Offset, r.JSON), r.Source,
		r.ID, r.Type, r.Cluster, r.Node, r.Severity, r.Check, r.Reason, r.Stream, int64(r.Sequence), r.JSON)
	return err
}

// lookup reports whether an event is stored already, and with the same content.
func (t *transaction) lookup(ctx context.Context, i identity, e journal.Event) (known, same bool, err error) {
	w := &t.store.writer
	content, known := t.added[i]
	if !known {
		content, known = w.known.content(i)
	}
	if known {
		return true, content == w.known.hash(e.JSON), nil
	}
	for _, p := range slices.Backward(t.store.partitions()) {
		stored, known, err := p.event(ctx, i, e)
		if err != nil && (p == w.part || !isDamage(err)) {
			return false, false, err
		}
		if known {
			return true, string(stored) == string(e.JSON), nil
		}
	}
	return false, false, nil
}

// saveStreams saves the watermarks that the file has not, those of the transaction included.
func (t *transaction) saveStreams(ctx context.Context) error {
	w := &t.store.writer
	for key := range w.unsaved {
		if _, ok := t.streams[key]; !ok {
			t.streams[key] = w.streams[key]
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(t.streams), compareKeys) { // page by page
		mark := t.streams[key]
		_, err := t.ready[saveStream].ExecContext(ctx, key.source, key.stream, int64(mark.highest), mark.seen.UnixMilli())
		if err != nil {
			return err
		}
	}
	return nil
}

func compareKeys(a, b streamKey) int {
	return cmp.Or(cmp.Compare(a.source, b.source), cmp.Compare(a.stream, b.stream))
}

// inOrder returns the events so that those of a stream are in the order of their sequences, in the places that events
// of the stream have.
func inOrder(events []journal.Event) []journal.Event {
	if areInOrder(events) {
		return events
	}
	places := map[streamKey][]int{}
	for i, e := range events {
		if e.Stream != "" {
			key := streamKey{e.Source, e.Stream}
			places[key] = append(places[key], i)
		}
	}
	ordered := slices.Clone(events)
	for _, at := range places {
		sorted := slices.Clone(at)
		slices.SortStableFunc(sorted, func(a, b int) int {
			return cmp.Compare(events[a].Sequence, events[b].Sequence)
		})
		for i, from := range sorted {
			ordered[at[i]] = events[from]
		}
	}
	return ordered
}

// areInOrder is true for what an agent sends at once: events of one stream, in order.
func areInOrder(events []journal.Event) bool {
	for i := range len(events) - 1 {
		a, b := &events[i], &events[i+1]
		if a.Stream == "" || a.Stream != b.Stream || a.Source != b.Source || a.Sequence > b.Sequence {
			return false
		}
	}
	return true
}
