package sqlite

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

func foreign(id string) journal.Event {
	return journal.Event{Source: "urn:x", ID: id, Type: "x", JSON: []byte(`{"id":"` + id + `"}`)}
}

// New identities are recognized without reading files of past days, however many there are; stored ones are found
// there, also after a restart.
func TestNewIdentity(t *testing.T) {
	const days = 31
	for _, restart := range []bool{false, true} {
		c, dir := newClock(), t.TempDir()
		s := openTest(t, dir, Options{Now: c.Now})
		for day := range days {
			s.mustAppend(t, foreign(fmt.Sprint("of day ", day)))
			c.now = c.now.Add(24 * time.Hour)
		}
		s.mustAppend(t, foreign("of today"))
		if err := s.Seal(t.Context()); err != nil {
			t.Fatal(err)
		}
		if restart {
			s.mustClose(t)
			s = openTest(t, dir, Options{Now: c.Now})
		}
		for day := range days {
			e := foreign(fmt.Sprint("of day ", day))
			other := e
			other.JSON = []byte(`"something else"`)
			if done := s.mustAppend(t, e, other); done.Duplicates != 2 || done.Conflicts != 1 {
				t.Errorf("day %d: %+v", day, done)
			}
		}
		for _, p := range s.parts[:days] { // a query of these files now fails
			if err := p.db.Close(); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 20 {
			if done := s.mustAppend(t, foreign(fmt.Sprint("new ", i))); done.New != 1 {
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
	c, dir := newClock(), t.TempDir()
	s := openTest(t, dir, Options{Now: c.Now})
	s.mustAppend(t, foreign("1"))
	c.now = c.now.Add(24 * time.Hour)
	s.mustAppend(t, foreign("2"))
	if err := s.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.mustClose(t)
	openAnd(t, filepath.Join(dir, partitionName(1)), "UPDATE filter SET bits = zeroblob(64)")
	s = openTest(t, dir, Options{Now: c.Now})
	if done := s.mustAppend(t, foreign("1")); done.Duplicates != 1 {
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
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(statement); err != nil {
		t.Fatal(err)
	}
}

// A directory of an older format, as left by a killed center, is converted at the first start without losing events,
// identities, watermarks or gaps.
func TestOlderFormats(t *testing.T) {
	for _, format := range []string{"format-1", "format-2"} {
		t.Run(format, func(t *testing.T) {
			c, dir := newClock(), t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", format))); err != nil {
				t.Fatal(err)
			}
			want := []string{"1 a/1", "2 b/1", "3 /0", "4 a/2", "5 /0", "6 a/3", "7 b/5", "8 a/4"}
			s := openTest(t, dir, Options{Now: c.Now, ReadOnly: true})
			s.expect(t, want...)
			s.mustClose(t)
			for range 2 {
				s = openTest(t, dir, Options{Now: c.Now})
				s.expect(t, want...)
				if done := s.mustAppend(t, of("a", 1), of("a", 4), of("b", 5), foreign("1"), foreign("2")); done.Duplicates != 5 ||
					done.Conflicts > 0 {
					t.Errorf("%+v", done)
				}
				if len(s.Health().Gaps) > 0 {
					t.Errorf("gaps: %v", s.Health().Gaps)
				}
				if err := s.Seal(t.Context()); err != nil {
					t.Error(err)
				}
				got := s.texts(t, journal.Query{Filter: journal.Filter{journal.Node: {"a"}}, Backward: true, Limit: 4})
				if diff := cmp.Diff([]string{"8 a/4", "6 a/3", "4 a/2", "1 a/1"}, got); diff != "" {
					t.Error(diff)
				}
				s.mustClose(t)
			}
			s = openTest(t, dir, Options{Now: c.Now})
			s.mustAppend(t, of("b", 4), of("a", 5), foreign("3")) // b/4 was late
			s.expect(t, append(want, "9 b/4", "10 a/5", "11 /0")...)
		})
	}
}
