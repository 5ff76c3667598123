package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
)

// onDays makes a journal with a sealed file of these events and a file with one more, and returns its directory.
func onDays(t *testing.T, c *journaltest.Clock, events []journal.Event) string {
	t.Helper()
	dir := t.TempDir()
	s := openTest(t, dir, Options{Now: c.Now})
	for len(events) > 0 {
		n := min(maxGroup, len(events))
		journaltest.Append(t, s, events[:n]...)
		events = events[n:]
	}
	c.Add(24 * time.Hour)
	journaltest.Append(t, s, of("last", 1))
	must(t, s.Seal(t.Context()))
	must(t, s.Close())
	return dir
}

// rootPage returns the first page of a table, counted from 0.
func rootPage(t *testing.T, file, table string) (page int) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+file+"?immutable=1")
	must(t, err)
	defer db.Close()
	must(t, db.QueryRow("SELECT rootpage - 1 FROM sqlite_schema WHERE name = ?", table).Scan(&page))
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
	c := journaltest.NewClock()
	dir := onDays(t, c, many(1, events))
	file := filepath.Join(dir, partitionName(1))
	overwrite(t, file, rootPage(t, file, "events"), 0xa5)
	for _, backward := range []bool{false, true} {
		q := span{journal.Query{Limit: 10, Backward: backward}, 1, events, 1}
		if backward {
			q.next, q.last, q.step = events, 1, -1
		}
		open := func() *Store { return openTest(t, dir, Options{Now: c.Now, ReadOnly: true}) }
		read := func(ctx context.Context, s *Store) error {
			part := q
			_, err := s.readPartition(ctx, s.parts[0], &part, &journal.Page{})
			return err
		}
		whole := withLookUps(t, 1000*events)
		must(t, read(whole, open()))
		limit := (1000*events - whole.left.Load()) / 5
		s := open()
		reads := 1
		err := read(withLookUps(t, limit), s)
		for ; errors.Is(err, context.DeadlineExceeded) && reads < 50; reads++ {
			err = read(withLookUps(t, limit), s)
		}
		if err != nil || reads == 1 {
			t.Fatalf("backward %t, read %d, each of %d look-ups at most: %v", backward, reads, limit, err)
		}
		t.Logf("backward %t: passed by read %d of %d look-ups", backward, reads, limit)
		page, err := s.Read(t.Context(), journal.Query{Limit: 10})
		if lost := offsetsOf(page.Gaps); err != nil || len(page.Records) != 1 || len(lost) != events {
			t.Errorf("%d records, gaps %v, %v", len(page.Records), page.Gaps, err)
		}
		if err := read(withLookUps(t, limit), s); err != nil {
			t.Errorf("backward %t, the next: %v", backward, err)
		}
	}
}

// Behind a damaged page, a read by node goes on with the index of nodes: it reads no other events.
func TestIndexBehindDamage(t *testing.T) {
	const events = 5000
	c := journaltest.NewClock()
	var all []journal.Event
	for i := range uint64(events) {
		all = append(all, of(fmt.Sprint("node-", i%10), i/10+1))
	}
	dir := onDays(t, c, all)
	file := filepath.Join(dir, partitionName(1))
	const other = 4002 // an event of node-1, far behind the damage
	openAnd(t, file, fmt.Sprint("UPDATE events SET crc = crc + 1 WHERE offset = ", other))
	for page := rootPage(t, file, "events") + 20; ; page++ { // the first ones are roots
		data, err := os.ReadFile(file)
		must(t, err)
		if data[page*pageSize] == 13 { // a leaf of the table
			overwrite(t, file, page, 0)
			break
		}
	}
	s := openTest(t, dir, Options{Now: c.Now, ReadOnly: true})
	for range 2 {
		page, err := s.Read(t.Context(), journal.Query{Limit: events, Filter: journal.Filter{journal.Node: {"node-0"}}})
		if n := len(page.Records); err != nil || n < events/10-20 || n == events/10 {
			t.Fatalf("%d records, %v", n, err)
		}
		if g, known := s.gapAt(other); known || len(s.Health().Gaps) != 1 {
			t.Errorf("the events of other nodes were read: %v, all gaps %v", g, s.Health().Gaps)
		}
	}
}

// A read by node in a file whose index lacks rows reads each event, of a limited number at a time.
func TestScanWithoutIndex(t *testing.T) {
	const events = scanLimit + 2000
	c := journaltest.NewClock()
	all := append(many(1, events), of("rare", 1))
	s := openTest(t, onDays(t, c, all), Options{Now: c.Now, ReadOnly: true})
	s.parts[0].noIndex.Store(true) // as the check of all files notes it
	q := journal.Query{Limit: 10, Filter: journal.Filter{journal.Node: {"rare"}}}
	page, err := s.read(t.Context(), q)
	if err != nil || page.Next != scanLimit || len(page.Records) > 0 {
		t.Fatalf("next %d with %d records, %v", page.Next, len(page.Records), err)
	}
	q.After = page.Next
	if page, err = s.read(t.Context(), q); err != nil || page.Next != events+2 || len(page.Records) != 1 {
		t.Errorf("next %d with %d records, %v", page.Next, len(page.Records), err)
	}
	q.After, q.Backward = 0, true
	if page, err = s.read(t.Context(), q); err != nil || len(page.Records) != 1 {
		t.Errorf("backward %d records, %v", len(page.Records), err)
	}
}
