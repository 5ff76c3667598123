package sqlite

import (
	"fmt"
	"os"
	"testing"

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
		k := newKit(t, t.TempDir())
		for n := range days {
			k.append(foreign(fmt.Sprint("of day ", n)))
			k.clock.Add(day)
		}
		k.append(foreign("of today"))
		must(t, k.Seal(t.Context()))
		if restart {
			k.open(Options{})
		}
		for n := range days {
			e := foreign(fmt.Sprint("of day ", n))
			other := e
			other.JSON = []byte(`"something else"`)
			if done := k.append(e, other); done.Duplicates != 2 || done.Conflicts != 1 {
				t.Errorf("day %d: %+v", n, done)
			}
		}
		for _, p := range k.parts[:days] { // a query of these files now fails
			must(t, p.db.Close())
		}
		for i := range 20 {
			if done := k.append(foreign(fmt.Sprint("new ", i))); done.New != 1 {
				t.Errorf("%+v", done)
			}
		}
		if _, err := k.Append(t.Context(), []journal.Event{foreign("of day 3")}); err == nil {
			t.Error("what is in a file that cannot be read is taken for new")
		}
	}
}

// A filter with changed bytes is not trusted: the file is read.
func TestDamagedFilter(t *testing.T) {
	k := sealedDay(t, foreign("1"))
	openAnd(t, k.file(1), "UPDATE filter SET bits = zeroblob(64)")
	k.open(Options{})
	if done := k.append(foreign("1")); done.Duplicates != 1 {
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

// After a kill in the moment when a day's file gets its name, known events are still known and new ones are taken, even
// if an older version made the file, which gave it no watermarks.
func TestKilledAtMidnight(t *testing.T) {
	for name, before := range map[string]func(*Store){
		"this version": func(*Store) {}, "an older version": func(s *Store) { s.writer.streams = nil },
	} {
		t.Run(name, func(t *testing.T) {
			k := newKit(t, t.TempDir())
			k.append(of("a", 1), of("a", 2), of("b", 1))
			k.close() // it no longer writes
			k.clock.Add(day)
			before(k.Store)
			p, err := k.create(t.Context(), 4, k.clock.Now().UTC().Format("2006-01-02"))
			must(t, err)
			must(t, p.close())
			for range 2 { // the second start finds the events of the first in the new file
				k.open(Options{})
				if done := k.append(of("a", 1), of("a", 2), of("b", 1), of("b", 2)); done.New > 1 || done.Last != 4 {
					t.Errorf("%+v", done)
				}
				k.expect("1 a/1", "2 a/2", "3 b/1", "4 b/2")
			}
		})
	}
}

// A log of another file next to a sealed one is not applied: the sealed file's contents stay the same.
func TestSealedFileWithForeignLog(t *testing.T) {
	k, other := sealedDay(t, of("a", 1), of("a", 2), foreign("1")), newKit(t, t.TempDir())
	other.append(of("b", 1), foreign("2"))
	log, err := os.ReadFile(other.file(1) + "-wal")
	must(t, err)
	must(t, os.WriteFile(k.file(1)+"-wal", log, 0o600))
	for _, readOnly := range []bool{true, false} {
		k.open(Options{ReadOnly: readOnly})
		k.expect("1 a/1", "2 a/2", "3 /0", "4 last/1")
		same(t, "gaps", nil, offsetsOf(k.Health().Gaps))
	}
	if done := k.append(of("a", 2), foreign("1"), of("a", 4)); done.Duplicates != 2 || done.New != 1 {
		t.Errorf("%+v", done)
	}
}

// A stream that was silent for days is still known: its earlier events are duplicates, even after a restart. It is
// forgotten after the time for which events are kept.
func TestSilentStreams(t *testing.T) {
	k := newKit(t, t.TempDir())
	keep := Options{Keep: 10 * day}
	k.open(keep)
	k.append(of("silent", 1), of("silent", 2))
	for n := range uint64(8) {
		k.clock.Add(day)
		k.append(of("a", n+1))
		if n%3 == 0 {
			k.open(keep)
		}
		if done := k.append(of("silent", 2), of("silent", 1)); done.Duplicates != 2 {
			t.Fatalf("day %d: %+v", n, done)
		}
	}
	if done := k.append(of("silent", 3)); done.New != 1 {
		t.Errorf("%+v", done)
	}
	for i := range 5 {
		k.append(of(fmt.Sprint("short-", i), 1))
	}
	for n := range uint64(2) { // after the first alone, the clock may have jumped
		k.clock.Add(11 * day)
		k.append(of("a", 9+n))
	}
	if n := len(k.writer.streams); n != 1 {
		t.Errorf("%d streams are remembered", n)
	}
}
