package sqlite

import (
	"database/sql"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
)

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

// Damage loses only the events on the damaged page: for a page of each kind, reads in both directions and by node,
// backup and salvage return all that a look-up of each offset finds, and exactly the rest is a gap.
func TestDamagedPage(t *testing.T) {
	const events = 2400
	c, sound := journaltest.NewClock(), t.TempDir()
	s := openTest(t, sound, Options{Now: c.Now})
	var batch []journal.Event
	for i := range uint64(events) {
		e := of(fmt.Sprint("node-", i%7), i/7+1)
		size := 600
		if i%50 == 0 {
			size = 9000 // overflows
		}
		e.JSON = fmt.Appendf(nil, `{"n":%d,"text":%q}`, i, strings.Repeat("x", size))
		batch = append(batch, e)
	}
	journaltest.Append(t, s, batch...)
	c.Add(24 * time.Hour)
	journaltest.Append(t, s, of("node-0", 10_000))
	must(t, s.Seal(t.Context()))
	must(t, s.Close())
	name := partitionName(1)
	kinds := pagesByKind(t, filepath.Join(sound, name))
	if len(kinds) != 6 {
		t.Fatalf("kinds of pages: %v", slices.Collect(maps.Keys(kinds)))
	}
	for kind, pages := range kinds {
		t.Run(kind, func(t *testing.T) {
			for i, page := range pages {
				dir := t.TempDir()
				must(t, os.CopyFS(dir, os.DirFS(sound)))
				overwrite(t, filepath.Join(dir, name), page, []byte{0, 0xa5}[i%2])
				damagedAs(t, dir, events+1, c)
			}
		})
	}
}

func overwrite(t *testing.T, name string, page int, with byte) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	must(t, err)
	defer f.Close()
	garbage := slices.Repeat([]byte{with}, pageSize)
	if _, err := f.WriteAt(garbage, int64(page)*pageSize); err != nil {
		t.Fatal(err)
	}
}

// lookedUp returns the offsets that single look-ups find, using none of our code except the checksum.
func lookedUp(t *testing.T, dir string, newest uint64) (found []uint64) {
	t.Helper()
	var dbs []*sql.DB
	files, _ := filepath.Glob(filepath.Join(dir, "*.db"))
	for _, file := range files {
		db, err := sql.Open("sqlite", "file:"+file+"?immutable=1")
		must(t, err)
		defer db.Close()
		dbs = append(dbs, db)
	}
	for offset := uint64(1); offset <= newest; offset++ {
		for _, db := range dbs {
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

// all reads everything, page by page.
func all(t *testing.T, s *Store, q journal.Query) (found []uint64, gaps []journal.Gap) {
	t.Helper()
	for q.Limit = 700; ; {
		page, err := s.Read(t.Context(), q)
		must(t, err)
		for _, r := range page.Records {
			found = append(found, r.Offset)
		}
		gaps = append(gaps, page.Gaps...)
		if q.After = page.Next; q.Backward && len(page.Records) == 0 || !q.Backward && page.Next >= s.Bounds().Newest {
			return found, gaps
		}
	}
}

func offsetsOf(gaps []journal.Gap) (offsets []uint64) {
	for _, g := range gaps {
		for offset := g.From; offset <= g.To; offset++ {
			offsets = append(offsets, offset)
		}
	}
	return offsets
}

// damagedAs compares all readers of a journal with a look-up of each offset.
func damagedAs(t *testing.T, dir string, newest uint64, c *journaltest.Clock) {
	t.Helper()
	want := lookedUp(t, dir, newest)
	var lost []uint64
	for offset := uint64(1); offset <= newest; offset++ {
		if !slices.Contains(want, offset) {
			lost = append(lost, offset)
		}
	}
	same := func(what string, want, got []uint64) {
		t.Helper()
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	backwards := slices.Clone(want)
	slices.Reverse(backwards)
	for _, way := range []string{"forward", "backward", "by node", "checked"} {
		s := openTest(t, dir, Options{Now: c.Now, ReadOnly: true})
		switch way {
		case "forward":
			got, gaps := all(t, s, journal.Query{})
			same(way, want, got)
			same("gaps of a page", lost, offsetsOf(gaps))
		case "backward":
			got, _ := all(t, s, journal.Query{Backward: true})
			same(way, backwards, got)
		case "by node":
			for n := range uint64(7) {
				ofNode := slices.DeleteFunc(slices.Clone(want), func(offset uint64) bool {
					return (offset-1)%7 != n && (offset != newest || n != 0) || offset == newest && n != 0
				})
				filter := journal.Filter{journal.Node: {fmt.Sprint("node-", n)}}
				got, _ := all(t, s, journal.Query{Filter: filter})
				same(way, ofNode, got)
				slices.Reverse(ofNode)
				got, _ = all(t, s, journal.Query{Filter: filter, Backward: true})
				same(way+" backward", ofNode, got)
			}
		}
		if _, err := s.Check(t.Context(), WithoutRest); err != nil {
			t.Error(err)
		}
		same("gaps "+way, lost, offsetsOf(s.Health().Gaps))
		must(t, s.Close())
	}
	to := filepath.Join(t.TempDir(), "salvaged")
	done, err := Salvage(t.Context(), dir, to, slog.New(slog.DiscardHandler))
	if err != nil || done.Events != len(want) || done.Newest != newest {
		t.Fatalf("%+v of %d: %v", done, len(want), err)
	}
	s := openTest(t, to, Options{Now: c.Now})
	got, gaps := all(t, s, journal.Query{})
	same("salvaged", want, got)
	same("gaps of what is salvaged", lost, offsetsOf(gaps))
	if again := journaltest.Append(t, s, of("node-1", 1), of("node-0", 10_001)); again.Last != newest+1 && again.Last != newest+2 {
		t.Errorf("%+v", again)
	}
	must(t, s.Close())

	copied := t.TempDir()
	done, err = Copy(t.Context(), dir, copied, slog.New(slog.DiscardHandler), func(string) error { return nil })
	must(t, err)
	same("gaps of the backup", lost, offsetsOf(done.Gaps))
	_, err = Renew(copied)
	must(t, err)
	got, _ = all(t, openTest(t, copied, Options{Now: c.Now}), journal.Query{})
	same("backed up", want, got)
}

// When the writer meets a damaged file, new events go into another file, and none is refused.
func TestWriterMeetsDamage(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{})
	journaltest.Append(t, s, of("a", 1), of("b", 1))
	if _, err := s.writer.db.Exec("DROP TABLE streams"); err != nil {
		t.Fatal(err)
	}
	journaltest.Append(t, s, of("a", 2))
	journaltest.Append(t, s, of("a", 2), of("a", 3))
	journaltest.Expect(t, s, "1 a/1", "2 b/1", "3 a/2", "4 a/3")
	if files, _ := filepath.Glob(filepath.Join(s.Dir, "*.db")); len(files) != 2 {
		t.Errorf("files: %v", files)
	}
}
