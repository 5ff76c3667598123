package sqlite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
)

// upper changes a text in the file that begins with an offset to upper case.
func (k *kit) upper(first uint64, text string) {
	k.t.Helper()
	edit(k.t, k.file(first), func(data []byte) []byte {
		if !bytes.Contains(data, []byte(text)) {
			k.t.Fatal("not there:", text)
		}
		return bytes.ReplaceAll(data, []byte(text), []byte(strings.ToUpper(text)))
	})
}

// Whatever damaged the files: unreadable offsets are a gap that is logged at the start, never skipped silently; the
// rest can be read, and new events get unused offsets.
func TestDamage(t *testing.T) {
	zero := func(data []byte) []byte { return make([]byte, len(data)) }
	for name, test := range map[string]struct {
		damage func(k *kit, early []byte)
		want   []string
	}{
		"none": {func(*kit, []byte) {}, []string{"1 a/1", "2 a/2", "3 a/3", "4 a/4", "5 a/9"}},
		"an event in the newest file": {func(k *kit, _ []byte) { k.upper(3, `"n":3`) },
			[]string{"1 a/1", "2 a/2", "4 a/4", "5 a/9", "gap 3-3"}},
		"an event in an older file": {func(k *kit, _ []byte) { k.upper(1, `"n":1`) },
			[]string{"2 a/2", "3 a/3", "4 a/4", "5 a/9", "gap 1-1"}},
		"the head of the newest file": {func(k *kit, _ []byte) { overwrite(k.t, k.file(3), 0, 0) },
			[]string{"1 a/1", "2 a/2", "5 a/9", "gap 3-4"}},
		"all of an older file": {func(k *kit, _ []byte) { edit(k.t, k.file(1), zero) },
			[]string{"3 a/3", "4 a/4", "5 a/9", "gap 1-2"}},
		"the newest file is gone": {func(k *kit, _ []byte) { must(k.t, os.Remove(k.file(3))) },
			[]string{"1 a/1", "2 a/2", "5 a/9", "gap 3-4"}},
		"the newest file is of before": {func(k *kit, early []byte) { must(k.t, os.WriteFile(k.file(3), early, 0o600)) },
			[]string{"1 a/1", "2 a/2", "3 a/3", "5 a/9", "gap 4-4"}},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKit(t, t.TempDir())
			k.append(of("a", 1), of("a", 2))
			k.clock.Add(day)
			k.append(of("a", 3))
			k.close()
			early, err := os.ReadFile(k.file(3))
			must(t, err)
			k.open(Options{})
			k.append(of("a", 4))
			k.close()
			test.damage(k, early)
			var log bytes.Buffer
			k.open(Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
			_, err = k.Check(t.Context(), WithoutRest)
			must(t, err)
			k.append(of("a", 9))
			k.expect(test.want...)
			told := strings.Contains(log.String(), "read a part of the journal failed")
			if gaps := strings.Contains(strings.Join(test.want, " "), "gap"); told != gaps {
				t.Errorf("logged: %s", log.String())
			}
			k.open(Options{}) // the next start shows the same, also with a filter
			filtered := journaltest.Texts(t, k, journal.Query{Filter: journal.Filter{journal.Node: {"a"}}})
			if diff := cmp.Diff(test.want, filtered); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Acknowledged events that are only in the write-ahead log are reported as a gap if the log is damaged.
func TestDamagedLog(t *testing.T) {
	k, dir := newKit(t, t.TempDir()), t.TempDir()
	for sequence := range uint64(3) {
		k.append(of("a", sequence+1))
	}
	must(t, os.CopyFS(dir, os.DirFS(k.dir))) // as after a kill
	log := filepath.Join(dir, partitionName(1)+"-wal")
	must(t, os.Remove(filepath.Join(dir, partitionName(1)+"-shm")))
	edit(t, log, func(data []byte) []byte {
		data[len(data)-100] ^= 1 // in the last frame, which belongs to the last event
		return data
	})
	killed := newKit(t, dir)
	killed.append(of("a", 4))
	killed.expect("1 a/1", "2 a/2", "4 a/4", "gap 3-3")
}

const pageSize = 4096 // SQLite's

// pagesByKind returns the pages of a file by kind: the first byte is the type of the tree
// (https://www.sqlite.org/fileformat2.html#b_tree_pages); all others are overflow pages. Some of each kind are enough.
func pagesByKind(t *testing.T, name string) map[string][]int {
	t.Helper()
	data, err := os.ReadFile(name)
	must(t, err)
	found := map[string][]int{"head": {0}}
	for page := 1; page < len(data)/pageSize; page++ {
		kind := map[byte]string{2: "inside of an index", 5: "inside of the table", 10: "leaf of an index",
			13: "leaf of the table"}[data[page*pageSize]]
		if kind == "" {
			kind = "overflow"
		}
		found[kind] = append(found[kind], page)
	}
	for kind, pages := range found {
		if n := len(pages); n > 2 {
			found[kind] = []int{pages[n/2], pages[n-1]}
		}
	}
	return found
}

func overwrite(t *testing.T, name string, page int, with byte) {
	t.Helper()
	edit(t, name, func(data []byte) []byte {
		copy(data[page*pageSize:], slices.Repeat([]byte{with}, pageSize))
		return data
	})
}

// Damage loses only the events on the damaged page: for a page of each kind, reads in both directions and by node,
// backup and salvage return all that a look-up of each offset finds, and exactly the rest is a gap.
func TestDamagedPage(t *testing.T) {
	const events = 2400
	var batch []journal.Event
	for i := range uint64(events) {
		e := of(nodeOf(i+1), i/7+1)
		size := 600
		if i%50 == 0 {
			size = 9000 // overflows
		}
		e.JSON = fmt.Appendf(nil, `{"n":%d,"text":%q}`, i, strings.Repeat("x", size))
		batch = append(batch, e)
	}
	sound := sealedDay(t, batch...)
	kinds := pagesByKind(t, sound.file(1))
	if len(kinds) != 6 {
		t.Fatalf("kinds of pages: %v", slices.Collect(maps.Keys(kinds)))
	}
	for kind, pages := range kinds {
		t.Run(kind, func(t *testing.T) {
			for i, page := range pages {
				k := *sound
				k.t, k.dir = t, t.TempDir()
				must(t, os.CopyFS(k.dir, os.DirFS(sound.dir)))
				overwrite(t, k.file(1), page, []byte{0, 0xa5}[i%2])
				k.damagedAs(events + 1)
			}
		})
	}
}

// nodeOf returns the node of the event of an offset in TestDamagedPage.
func nodeOf(offset uint64) string { return fmt.Sprint("node-", offset%7) }

// lookedUp returns the offsets that single look-ups find, using none of our code except the checksum.
func (k *kit) lookedUp(newest uint64) (found []uint64) {
	k.t.Helper()
	for _, file := range k.files() {
		db := readOnly(k.t, file)
		for offset := uint64(1); offset <= newest; offset++ {
			var text []byte
			var crc uint32
			err := db.QueryRow("SELECT crc, event FROM events WHERE offset = ?", int64(offset)).Scan(&crc, &text)
			if err == nil && crc == checksum(offset, text) {
				found = append(found, offset)
			}
		}
	}
	return found
}

// all reads everything, and returns the offsets.
func (k *kit) all(q journal.Query) (found, lost []uint64) {
	k.t.Helper()
	records, gaps := journaltest.All(k.t, k, q)
	for _, r := range records {
		found = append(found, r.Offset)
	}
	return found, offsetsOf(gaps)
}

// damagedAs compares all readers of a journal with a look-up of each offset.
func (k *kit) damagedAs(newest uint64) {
	k.t.Helper()
	want := k.lookedUp(newest)
	var lost []uint64
	for offset := uint64(1); offset <= newest; offset++ {
		if !slices.Contains(want, offset) {
			lost = append(lost, offset)
		}
	}
	reads := map[string][]journal.Query{"forward": {{}}, "backward": {{Backward: true}}, "checked": nil}
	for n := range uint64(7) {
		filter := journal.Filter{journal.Node: {nodeOf(n)}}
		reads["by node"] = append(reads["by node"], journal.Query{Filter: filter},
			journal.Query{Filter: filter, Backward: true})
	}
	for way, queries := range reads {
		k.open(Options{ReadOnly: true})
		for _, q := range queries {
			matching := slices.DeleteFunc(slices.Clone(want), func(offset uint64) bool {
				return q.Filter != nil && (offset == newest || nodeOf(offset) != q.Filter[journal.Node][0])
			})
			if q.Backward {
				slices.Reverse(matching)
			}
			got, gaps := k.all(q)
			same(k.t, fmt.Sprint(way, q), matching, got)
			if way == "forward" {
				same(k.t, "gaps of the pages", lost, gaps)
			}
		}
		k.expectLost(lost...)
	}
	copied := k.t.TempDir()
	done, err := Copy(k.t.Context(), k.dir, copied, k.Log, func(string) error { return nil })
	must(k.t, err)
	same(k.t, "gaps of the backup", lost, offsetsOf(done.Gaps))
	_, err = Renew(copied)
	must(k.t, err)
	backup := newKit(k.t, copied)
	got, _ := backup.all(journal.Query{})
	same(k.t, "backed up", want, got)

	to := filepath.Join(k.t.TempDir(), "salvaged")
	done, err = Salvage(k.t.Context(), k.dir, to, k.Log)
	if err != nil || done.Events != len(want) || done.Newest != newest {
		k.t.Fatalf("%+v of %d: %v", done, len(want), err)
	}
	salvaged := newKit(k.t, to)
	got, gaps := salvaged.all(journal.Query{})
	same(k.t, "salvaged", want, got)
	same(k.t, "gaps of what is salvaged", lost, gaps)
	if again := salvaged.append(of("node-1", 1), of("node-0", 10_001)); again.Last != newest+1 && again.Last != newest+2 {
		k.t.Errorf("%+v", again)
	}
}

// When the writer meets a damaged file, new events go into another file, and none is refused.
func TestWriterMeetsDamage(t *testing.T) {
	k := newKit(t, t.TempDir())
	k.append(of("a", 1), of("b", 1))
	_, err := k.writer.db.Exec("DROP TABLE streams")
	must(t, err)
	k.append(of("a", 2))
	k.append(of("a", 2), of("a", 3))
	k.expect("1 a/1", "2 b/1", "3 a/2", "4 a/3")
	if files := k.files(); len(files) != 2 {
		t.Errorf("files: %v", files)
	}
}

// rootPage returns the first page of the table of events, counted from 0.
func rootPage(t *testing.T, file string) (page int) {
	t.Helper()
	must(t, readOnly(t, file).QueryRow("SELECT rootpage - 1 FROM sqlite_schema WHERE name = 'events'").Scan(&page))
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
	overwrite(t, k.file(1), rootPage(t, k.file(1)), 0xa5)
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
	openAnd(t, k.file(1), fmt.Sprint("UPDATE events SET crc = crc + 1 WHERE offset = ", other))
	data, err := os.ReadFile(k.file(1))
	must(t, err)
	page := rootPage(t, k.file(1)) + 20 // the first ones are roots
	for data[page*pageSize] != 13 {     // a leaf of the table
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
