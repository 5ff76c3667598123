package sqlite

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// What the index finds is what a look at every event finds: with runs in several files, in memory, and after a restart.
func TestIndex(t *testing.T) {
	for seed := range uint64(8) {
		w := &indexWorld{T: t, rand: rand.New(rand.NewPCG(seed, 1)), clock: newClock(), dir: t.TempDir(), next: map[string]uint64{}}
		w.open()
		for range 60 {
			switch n := w.rand.IntN(20); {
			case n < 12:
				w.append()
			case n == 12:
				w.clock.now = w.clock.now.Add(24 * time.Hour)
			case n == 13:
				w.store.mustClose(t)
				w.open()
			case n == 14:
				w.seal()
			default:
				w.read()
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// indexWorld is a journal and what it must have.
type indexWorld struct {
	*testing.T
	rand  *rand.Rand
	clock *clock
	dir   string
	store *Store
	want  []journal.Event   // by offset-1
	next  map[string]uint64 // sequence of each node
}

func (w *indexWorld) open() {
	w.store = openTest(w.T, w.dir, Options{Now: w.clock.Now, RunEvents: 7})
}

// seal merges the runs of past days.
func (w *indexWorld) seal() {
	if err := w.store.Seal(w.Context()); err != nil {
		w.Fatal(err)
	}
	for _, p := range w.store.parts[:max(0, len(w.store.parts)-1)] {
		if len(p.index.runs) != 1 {
			w.Errorf("%s has %d runs", p.path, len(p.index.runs))
		}
	}
}

// append adds new events of some nodes, and some that are there already, with what they said or with something else.
func (w *indexWorld) append() {
	var known, fresh []journal.Event
	before, conflicts := len(w.want), 0
	for range 1 + w.rand.IntN(5) {
		if before > 0 && w.rand.IntN(4) == 0 {
			e := w.want[w.rand.IntN(before)]
			if w.rand.IntN(3) == 0 {
				e.JSON, conflicts = []byte(`"something else"`), conflicts+1
			}
			known = append(known, e)
			continue
		}
		node := fmt.Sprintf("n%d", w.rand.IntN(4))
		w.next[node]++
		e := of(node, w.next[node])
		if w.rand.IntN(5) == 0 { // of a foreign sender
			e.Stream, e.ID, e.After = "", "foreign-"+e.ID, uint64(w.rand.IntN(len(w.want)+1))
		}
		fresh, w.want = append(fresh, e), append(w.want, e)
	}
	done := w.store.mustAppend(w.T, append(known, fresh...)...)
	if done.New != len(fresh) || done.Duplicates != len(known) || done.Conflicts != conflicts {
		w.Errorf("%+v of %d new and %d known events, %d with another content", done, len(fresh), len(known), conflicts)
	}
}

// read reads a page and compares it.
func (w *indexWorld) read() {
	q := journal.Query{After: uint64(w.rand.IntN(len(w.want) + 2)), Limit: 1 + w.rand.IntN(8), Backward: w.rand.IntN(2) == 0,
		Filter: journal.Filter{journal.Node: []string{"n0", "n1", "none"}[w.rand.IntN(2):]}}
	w.store.tail = tail{} // else the newest are read from memory
	page, err := w.store.Read(w.Context(), q)
	if err != nil {
		w.Fatal(err)
	}
	var got, want []string
	for _, r := range page.Records {
		got = append(got, fmt.Sprint(r.Offset, " ", r.ID))
	}
	for i, e := range w.want {
		offset := uint64(i + 1)
		in := offset > q.After
		if q.Backward {
			in = offset < q.After || q.After == 0
		}
		if in && slices.Contains(q.Filter[journal.Node], e.Node) {
			want = append(want, fmt.Sprint(offset, " ", e.ID))
		}
	}
	if q.Backward {
		slices.Reverse(want)
	}
	want = want[:min(len(want), q.Limit)]
	if diff := cmp.Diff(want, got); diff != "" {
		w.Errorf("%+v: %s", q, diff)
	}
}

// A file of the format before is read, finds what is known, and is not written to any more; an empty one is replaced.
func TestFormatBefore(t *testing.T) {
	const schema1 = `
CREATE TABLE meta(version INTEGER NOT NULL, day TEXT NOT NULL);
CREATE TABLE events(
  offset INTEGER PRIMARY KEY, received INTEGER NOT NULL, dedup INTEGER NOT NULL, crc INTEGER NOT NULL,
  source TEXT NOT NULL, id TEXT NOT NULL, type TEXT NOT NULL, cluster TEXT NOT NULL, node TEXT NOT NULL,
  severity TEXT NOT NULL, "check" TEXT NOT NULL, reason TEXT NOT NULL, stream TEXT NOT NULL,
  sequence INTEGER NOT NULL, event BLOB NOT NULL);
CREATE INDEX events_dedup ON events(dedup);
CREATE INDEX events_node ON events(node);
CREATE TABLE streams(
  source TEXT NOT NULL, stream TEXT NOT NULL, highest INTEGER NOT NULL, seen INTEGER NOT NULL,
  PRIMARY KEY(source, stream)) WITHOUT ROWID;`
	c := newClock()
	dir := t.TempDir()
	openTest(t, dir, Options{Now: c.Now}).mustClose(t)
	file := func(first uint64, events ...journal.Event) {
		db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, partitionName(first)))
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		must := func(query string, args ...any) {
			t.Helper()
			if _, err := db.Exec(query, args...); err != nil {
				t.Fatal(err)
			}
		}
		must(schema1)
		must("INSERT INTO meta VALUES(1, ?)", c.now.Format(time.DateOnly))
		for i, e := range events {
			offset := first + uint64(i)
			must("INSERT INTO events("+columns+", dedup) VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)", int64(offset),
				c.now.UnixMilli(), checksum(offset, e.JSON), e.Source, e.ID, e.Type, e.Cluster, e.Node, e.Severity, e.Check,
				e.Reason, e.Stream, int64(e.Sequence), e.JSON, identityOf(e.Source, e.ID).hash())
			must("INSERT OR REPLACE INTO streams VALUES(?, ?, ?, ?)", e.Source, e.Stream, int64(e.Sequence), c.now.UnixMilli())
		}
	}
	file(1, of("a", 1), of("b", 1), of("a", 2))
	file(4)
	s := openTest(t, dir, Options{Now: c.Now})
	done := s.mustAppend(t, of("a", 2), of("a", 3), of("b", 1), of("b", 2))
	if done.New != 2 || done.Duplicates != 2 {
		t.Errorf("%+v", done)
	}
	s.expect(t, "1 a/1", "2 b/1", "3 a/2", "4 a/3", "5 b/2")
	s.tail = tail{}
	got := s.texts(t, journal.Query{Filter: journal.Filter{journal.Node: {"a"}}})
	if diff := cmp.Diff([]string{"1 a/1", "3 a/2", "4 a/3"}, got); diff != "" {
		t.Error(diff)
	}
}

// The watermark of a stream that was silent since the last start is saved with the next run.
func TestWatermarkOfASilentStream(t *testing.T) {
	dir, o := t.TempDir(), Options{RunEvents: 3}
	s := openTest(t, dir, o)
	s.mustAppend(t, of("a", 1))
	s.mustClose(t)
	s = openTest(t, dir, o)
	s.mustAppend(t, of("b", 1), of("b", 2), of("b", 3))
	s.mustClose(t)
	s = openTest(t, dir, o)
	if done := s.mustAppend(t, of("a", 1)); done.Duplicates != 1 {
		t.Errorf("%+v", done)
	}
}

// All that a node has in a run is found, also where it is more than a block.
func TestRunOfOneNode(t *testing.T) {
	const each = 2 * block / entryBytes
	s := openTest(t, t.TempDir(), Options{RunEvents: 2 * each})
	for sequence := range uint64(each) {
		s.mustAppend(t, of("a", sequence+1), of("b", sequence+1))
	}
	s.tail = tail{}
	for _, node := range []string{"a", "b"} {
		q := journal.Query{Limit: 2 * each, Filter: journal.Filter{journal.Node: {node}}}
		if got := s.texts(t, q); len(got) != each {
			t.Errorf("%s: %d of %d", node, len(got), each)
		}
	}
}

// The file of a past day has its whole index, and the next one begins with the streams that were heard of lately.
func TestNextDay(t *testing.T) {
	c := newClock()
	s := openTest(t, t.TempDir(), Options{Now: c.Now, Keep: 48 * time.Hour})
	s.mustAppend(t, of("a", 1))
	c.now = c.now.Add(36 * time.Hour)
	s.mustAppend(t, of("b", 1))
	c.now = c.now.Add(24 * time.Hour)
	s.mustAppend(t, of("c", 1))
	for i, p := range s.parts[:2] {
		if len(p.index.recent[byNode]) > 0 || !slices.Equal(p.index.runs, []uint64{uint64(i + 1)}) {
			t.Errorf("%+v", p.index.runs)
		}
	}
	var streams int
	err := s.parts[2].db.QueryRow("SELECT count(*) FROM streams").Scan(&streams)
	if err != nil || streams != 1 { // b; that of c is saved with the first run
		t.Errorf("%d streams: %v", streams, err)
	}
}

// What is sent again soon is known without a look at the files, which takes longer than to store what is new.
func TestSentAgain(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{RunEvents: 2})
	s.mustAppend(t, of("a", 1), of("a", 2), of("a", 3))
	if err := s.parts[0].db.Close(); err != nil { // that of readers
		t.Fatal(err)
	}
	other := of("a", 1)
	other.JSON = []byte(`"something else"`)
	if done := s.mustAppend(t, of("a", 1), other, of("a", 4)); done != (journal.Appended{Last: 4, New: 1, Duplicates: 2,
		Conflicts: 1}) {
		t.Errorf("%+v", done)
	}
}

// What follows from an event is not looked for in what is older.
func TestAfter(t *testing.T) {
	c := newClock()
	dir := t.TempDir()
	s := openTest(t, dir, Options{Now: c.Now, RunEvents: 2})
	s.mustAppend(t, of("a", 1), of("a", 2))
	c.now = c.now.Add(24 * time.Hour)
	s.mustAppend(t, of("a", 3))
	derived := of("a", 0)
	derived.Stream, derived.ID, derived.After = "", "derived", 3
	s.mustAppend(t, derived)
	s.mustClose(t)
	s = openTest(t, dir, Options{Now: c.Now, RunEvents: 2})
	if err := s.parts[0].db.Close(); err != nil {
		t.Fatal(err)
	}
	other := derived
	other.ID = "other"
	if done := s.mustAppend(t, derived, other); done.Duplicates != 1 || done.New != 1 {
		t.Errorf("%+v", done)
	}
}

// Of the newest events at least one generation is known, and no more than two.
func TestKnown(t *testing.T) {
	var r knownEvents
	n := 5 * generation / 2
	at := func(i int) identity { return identityOf("/a", fmt.Sprint(i)) }
	for i := range n {
		r.add(map[identity]uint64{at(i): uint64(i)})
	}
	for i := range n {
		content, known := r.content(at(i))
		if want := i >= generation; known != want || known && content != uint64(i) {
			t.Fatalf("event %d of %d: %d, %v", i, n, content, known)
		}
	}
}

// A file is read without locks where nothing is written to it and nothing is left to be taken over, and nowhere else.
func TestSealed(t *testing.T) {
	c := newClock()
	dir := t.TempDir()
	o := Options{Now: c.Now, RunEvents: 2}
	reopen := func() *Store { return openTest(t, dir, o) }
	expect := func(s *Store, sealed ...bool) {
		t.Helper()
		var got []bool
		for _, p := range s.parts {
			got = append(got, p.sealed)
		}
		if diff := cmp.Diff(sealed, got); diff != "" {
			t.Errorf("sealed: %s", diff)
		}
		s.tail = tail{}
		var all []string
		for i := range s.newest {
			all = append(all, fmt.Sprintf("%d a/%d", i+1, i+1))
		}
		if diff := cmp.Diff(all, s.texts(t, journal.Query{Filter: journal.Filter{journal.Node: {"a"}}})); diff != "" {
			t.Error(diff)
		}
	}
	s := reopen()
	s.mustAppend(t, of("a", 1), of("a", 2))
	s.mustAppend(t, of("a", 3))
	c.now = c.now.Add(24 * time.Hour)
	s.mustAppend(t, of("a", 4))
	expect(s, false, false)
	if err := s.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(s, true, false)
	s.mustClose(t)

	// As a backup has it.
	openAnd(t, filepath.Join(dir, partitionName(4)), "PRAGMA journal_mode=DELETE").Close()
	s = reopen()
	s.mustAppend(t, of("a", 5))
	expect(s, true, false)
	s.mustClose(t)

	// A log that nobody has taken over.
	defer openAnd(t, filepath.Join(dir, partitionName(1)), "PRAGMA journal_mode=WAL").Close()
	s = reopen()
	expect(s, false, false)
	s.mustClose(t)
}

// openAnd opens a file beside the journal and executes a statement.
func openAnd(t *testing.T, path, statement string) *sql.DB {
	t.Helper()
	db, err := open(path, writing)
	if err == nil {
		_, err = db.Exec(statement)
	}
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// A file whose runs cannot be merged is sealed all the same, and is told once.
func TestSealedWithoutMerging(t *testing.T) {
	c := newClock()
	s := openTest(t, t.TempDir(), Options{Now: c.Now, RunEvents: 1})
	s.mustAppend(t, of("a", 1))
	s.mustAppend(t, of("a", 2))
	c.now = c.now.Add(24 * time.Hour)
	s.mustAppend(t, of("a", 3))
	openAnd(t, s.parts[0].path, `UPDATE runs SET entries = x'00' WHERE last = 1 AND "by" = 0`).Close()
	if err := s.Seal(t.Context()); err == nil || !strings.Contains(err.Error(), "a block of the index has 1 bytes") {
		t.Error(err)
	}
	if err := s.Seal(t.Context()); err != nil || !s.parts[0].sealed {
		t.Errorf("%v, sealed %v", err, s.parts[0].sealed)
	}
	s.tail = tail{}
	got := s.texts(t, journal.Query{Filter: journal.Filter{journal.Node: {"a"}}})
	if diff := cmp.Diff([]string{"1 a/1", "2 a/2", "3 a/3"}, got); diff != "" {
		t.Error(diff)
	}
}
