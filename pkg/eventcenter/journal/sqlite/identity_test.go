package sqlite

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
)

func foreign(id string) journal.Event {
	return journal.Event{Source: "urn:x", ID: id, Type: "x", JSON: []byte(`{"id":"` + id + `"}`)}
}

// New identities are recognized without reading files of past days, however many there are; stored ones are found
// there, also after a restart.
func TestNewIdentity(t *testing.T) {
	const days = 31
	for _, restart := range []bool{false, true} {
		c, dir := journaltest.NewClock(), t.TempDir()
		s := openTest(t, dir, Options{Now: c.Now})
		for day := range days {
			journaltest.Append(t, s, foreign(fmt.Sprint("of day ", day)))
			c.Add(24 * time.Hour)
		}
		journaltest.Append(t, s, foreign("of today"))
		must(t, s.Seal(t.Context()))
		if restart {
			must(t, s.Close())
			s = openTest(t, dir, Options{Now: c.Now})
		}
		for day := range days {
			e := foreign(fmt.Sprint("of day ", day))
			other := e
			other.JSON = []byte(`"something else"`)
			if done := journaltest.Append(t, s, e, other); done.Duplicates != 2 || done.Conflicts != 1 {
				t.Errorf("day %d: %+v", day, done)
			}
		}
		for _, p := range s.parts[:days] { // a query of these files now fails
			must(t, p.db.Close())
		}
		for i := range 20 {
			if done := journaltest.Append(t, s, foreign(fmt.Sprint("new ", i))); done.New != 1 {
				t.Errorf("%+v", done)
			}
		}
		if _, err := s.Append(t.Context(), []journal.Event{foreign("of day 3")}); err == nil {
			t.Error("what is in a file that cannot be read is taken for new")
		}
	}
}

// A filter with changed bytes is not trusted: the file is read.
func TestDamagedFilter(t *testing.T) {
	c, dir := journaltest.NewClock(), t.TempDir()
	s := openTest(t, dir, Options{Now: c.Now})
	journaltest.Append(t, s, foreign("1"))
	c.Add(24 * time.Hour)
	journaltest.Append(t, s, foreign("2"))
	must(t, s.Seal(t.Context()))
	must(t, s.Close())
	openAnd(t, filepath.Join(dir, partitionName(1)), "UPDATE filter SET bits = zeroblob(64)")
	s = openTest(t, dir, Options{Now: c.Now})
	if done := journaltest.Append(t, s, foreign("1")); done.Duplicates != 1 {
		t.Errorf("%+v", done)
	}
}

// A filter has few false positives.
func TestFilter(t *testing.T) {
	const n = 20_000
	f := newFilter(n)
	for i := range n {
		f.add(identityOf("/a", fmt.Sprint(i)))
	}
	wrong := 0
	for i := range n {
		if !f.mayHave(identityOf("/a", fmt.Sprint(i))) {
			t.Fatalf("%d is missing", i)
		}
		if f.mayHave(identityOf("/b", fmt.Sprint(i))) {
			wrong++
		}
	}
	if wrong > n/500 {
		t.Errorf("%d of %d are taken for known", wrong, n)
	}
}

// openAnd opens a file outside the journal and executes a statement.
func openAnd(t *testing.T, path, statement string) {
	t.Helper()
	db, err := open(path, writing)
	must(t, err)
	defer db.Close()
	if _, err := db.Exec(statement); err != nil {
		t.Fatal(err)
	}
}

// A file of another format is refused by name, and stays as it is.
func TestOtherFormats(t *testing.T) {
	c, dir := journaltest.NewClock(), t.TempDir()
	s := openTest(t, dir, Options{Now: c.Now})
	journaltest.Append(t, s, of("a", 1), foreign("1"))
	c.Add(24 * time.Hour)
	journaltest.Append(t, s, of("a", 2))
	must(t, s.Close())
	name := filepath.Join(dir, partitionName(1))
	refused := func(format int, err error) {
		t.Helper()
		for _, want := range []string{name, fmt.Sprintf("its format is %d", format), "eventcenter export"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("format %d: no %q in %v", format, want, err)
			}
		}
	}
	log := slog.New(slog.DiscardHandler)
	for _, format := range []int{0, 1, 2, version + 1} {
		openAnd(t, name, fmt.Sprint("UPDATE meta SET version = ", format))
		for _, readOnly := range []bool{true, false} {
			_, err := Open(t.Context(), Options{Dir: dir, Log: log, ReadOnly: readOnly})
			refused(format, err)
		}
		_, err := Salvage(t.Context(), dir, filepath.Join(t.TempDir(), "new"), log)
		refused(format, err)
	}
	openAnd(t, name, fmt.Sprint("UPDATE meta SET version = ", version))
	journaltest.Expect(t, openTest(t, dir, Options{Now: c.Now}), "1 a/1", "2 /0", "3 a/2")
}

// After a kill in the moment when a day's file gets its name, known events are still known and new ones are taken, even
// if an older version made the file, which gave it no watermarks.
func TestKilledAtMidnight(t *testing.T) {
	t.Run("this version", func(t *testing.T) { killedAtMidnight(t, func(*Store) {}) })
	t.Run("an older version", func(t *testing.T) { killedAtMidnight(t, func(s *Store) { s.writer.streams = nil }) })
}

func killedAtMidnight(t *testing.T, before func(*Store)) {
	t.Helper()
	dir, c := t.TempDir(), journaltest.NewClock()
	s := openTest(t, dir, Options{Now: c.Now})
	journaltest.Append(t, s, of("a", 1), of("a", 2), of("b", 1))
	must(t, s.Close()) // it no longer writes
	c.Add(24 * time.Hour)
	before(s)
	p, err := s.create(t.Context(), 4, c.Now().UTC().Format(time.DateOnly))
	must(t, err)
	must(t, p.close())
	for range 2 { // the second start finds the events of the first in the new file
		s = openTest(t, dir, Options{Now: c.Now})
		if done := journaltest.Append(t, s, of("a", 1), of("a", 2), of("b", 1), of("b", 2)); done.New > 1 || done.Last != 4 {
			t.Errorf("%+v", done)
		}
		journaltest.Expect(t, s, "1 a/1", "2 a/2", "3 b/1", "4 b/2")
		must(t, s.Close())
	}
}
