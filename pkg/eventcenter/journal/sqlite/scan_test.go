package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// rootPage returns the first page of a table, counted from 0.
func rootPage(t *testing.T, file, table string) (page int) {
	t.Helper()
	must(t, readOnly(t, file).QueryRow("SELECT rootpage - 1 FROM sqlite_schema WHERE name = ?", table).Scan(&page))
	return page
}

// lookUps is a context that ends after a number of questions whether it has ended: each look-up asks at least once.
type lookUps struct {
	context.Context
	left atomic.Int64
}

func withLookUps(t *testing.T, n int64) *lookUps {
	c := &lookUps{Context: t.Context()}
	c.left.Store(n)
	return c
}

func (c *lookUps) Done() <-chan struct{} {
	done := make(chan struct{})
	if c.left.Add(-1) < 0 {
		close(done)
	}
	return done
}

func (c *lookUps) Err() error {
	if c.left.Load() < 0 {
		return context.DeadlineExceeded
	}
	return c.Context.Err()
}

// A damaged region too large for one read is passed by the next few, and later ones do not search it again.
func TestLargeDamage(t *testing.T) {
	const events = 2000
	k := sealedDay(t, many(1, events)...)
	overwrite(t, k.file(1), rootPage(t, k.file(1), "events"), 0xa5)
	for _, backward := range []bool{false, true} {
		q := span{journal.Query{Limit: 10, Backward: backward}, 1, events, 1}
		if backward {
			q.next, q.last, q.step = events, 1, -1
		}
		read := func(ctx context.Context) error {
			part := q
			_, err := k.readPartition(ctx, k.parts[0], &part, &journal.Page{})
			return err
		}
		whole := withLookUps(t, 1000*events)
		k.open(Options{ReadOnly: true})
		must(t, read(whole))
		limit := (1000*events - whole.left.Load()) / 5
		k.open(Options{ReadOnly: true})
		reads := 1
		err := read(withLookUps(t, limit))
		for ; errors.Is(err, context.DeadlineExceeded) && reads < 50; reads++ {
			err = read(withLookUps(t, limit))
		}
		if err != nil || reads == 1 {
			t.Fatalf("backward %t, read %d, each of %d look-ups at most: %v", backward, reads, limit, err)
		}
		page, err := k.Read(t.Context(), journal.Query{Limit: 10})
		if lost := offsetsOf(page.Gaps); err != nil || len(page.Records) != 1 || len(lost) != events {
			t.Errorf("%d records, gaps %v, %v", len(page.Records), page.Gaps, err)
		}
		if err := read(withLookUps(t, limit)); err != nil {
			t.Errorf("backward %t, the next: %v", backward, err)
		}
	}
}

// Behind a damaged page, a read by node goes on with the index of nodes: it reads no other events.
func TestIndexBehindDamage(t *testing.T) {
	const events = 5000
	var all []journal.Event
	for i := range uint64(events) {
		all = append(all, of(fmt.Sprint("node-", i%10), i/10+1))
	}
	k := sealedDay(t, all...)
	const other = 4002 // an event of node-1, far behind the damage
	execute(t, k.file(1), fmt.Sprint("UPDATE events SET crc = crc + 1 WHERE offset = ", other))
	data, err := os.ReadFile(k.file(1))
	must(t, err)
	page := rootPage(t, k.file(1), "events") + 20 // the first ones are roots
	for data[page*pageSize] != 13 {               // a leaf of the table
		page++
	}
	overwrite(t, k.file(1), page, 0)
	k.open(Options{ReadOnly: true})
	for range 2 {
		page, err := k.Read(t.Context(), journal.Query{Limit: events, Filter: journal.Filter{journal.Node: {"node-0"}}})
		if n := len(page.Records); err != nil || n < events/10-20 || n == events/10 {
			t.Fatalf("%d records, %v", n, err)
		}
		if g, known := k.gapAt(other); known || len(k.Health().Gaps) != 1 {
			t.Errorf("the events of other nodes were read: %v, all gaps %v", g, k.Health().Gaps)
		}
	}
}

// A read by node in a file whose index lacks rows reads each event, of a limited number at a time.
func TestScanWithoutIndex(t *testing.T) {
	const events = scanLimit + 2000
	k := sealedDay(t, append(many(1, events), of("rare", 1))...)
	k.open(Options{ReadOnly: true})
	k.parts[0].noIndex.Store(true) // as the check of all files notes it
	for _, test := range []struct {
		after         uint64
		backward      bool
		next, records int
	}{{0, false, scanLimit, 0}, {scanLimit, false, events + 2, 1}, {0, true, 0, 1}} {
		q := journal.Query{After: test.after, Backward: test.backward, Limit: 10,
			Filter: journal.Filter{journal.Node: {"rare"}}}
		page, err := k.read(t.Context(), q)
		if err != nil || len(page.Records) != test.records || !test.backward && page.Next != uint64(test.next) {
			t.Errorf("%+v: next %d with %d records, %v", test, page.Next, len(page.Records), err)
		}
	}
}
