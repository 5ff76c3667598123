package sqlite

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

const stream = "01J9ZZZZZZZZZZZZZZZZZZZZZZ"

// clock is the center's clock in a test.
type clock struct{ now time.Time }

func newClock() *clock { return &clock{time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time { return c.now }

func openTest(t *testing.T, dir string, o Options) *Store {
	t.Helper()
	o.Dir, o.BallastBytes = dir, 1<<16
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		select {
		case <-s.stopping:
		default:
			_ = s.Close()
		}
	})
	return s
}

func (s *Store) mustClose(t *testing.T) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// of returns an event of a node's agent.
func of(node string, sequence uint64) journal.Event {
	source := "/clusters/c/nodes/" + node
	return journal.Event{Source: source, ID: fmt.Sprintf("%s-%020d", stream, sequence), Type: "t", Cluster: "c",
		Node: node, Severity: "info", Check: "dns", Reason: "Slow", Stream: stream, Sequence: sequence,
		JSON: fmt.Appendf(nil, `{"source":%q,"n":%d}`, source, sequence)}
}

func (s *Store) mustAppend(t *testing.T, events ...journal.Event) journal.Appended {
	t.Helper()
	done, err := s.Append(t.Context(), events)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// texts reads everything and returns it as "offset node/sequence", and the gaps.
func (s *Store) texts(t *testing.T, q journal.Query) (found []string) {
	t.Helper()
	if q.Limit == 0 {
		q.Limit = 1000
	}
	page, err := s.Read(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range page.Records {
		found = append(found, fmt.Sprintf("%d %s/%d", r.Offset, r.Node, r.Sequence))
	}
	for _, g := range page.Gaps {
		found = append(found, fmt.Sprintf("gap %d-%d", g.From, g.To))
	}
	return found
}

func (s *Store) expect(t *testing.T, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, s.texts(t, journal.Query{})); diff != "" {
		t.Error(diff)
	}
}

func TestAppendAndRead(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir, Options{})
	bounds := s.Bounds()
	got := s.mustAppend(t, of("a", 2), of("b", 1), of("a", 1)) // the order is that of the sequences
	if diff := cmp.Diff(journal.Appended{Last: 3, New: 3}, got); diff != "" {
		t.Error(diff)
	}
	select {
	case <-bounds.Changed:
	default:
		t.Error("nobody is told of what was appended")
	}
	foreign := journal.Event{Source: "urn:x", ID: "1", Type: "x", JSON: []byte(`{"a":1}`)}
	s.mustAppend(t, foreign)
	s.expect(t, "1 a/1", "2 b/1", "3 a/2", "4 /0")
	for _, test := range []struct {
		q    journal.Query
		want []string
	}{
		{journal.Query{After: 2}, []string{"3 a/2", "4 /0"}},
		{journal.Query{Limit: 1}, []string{"1 a/1"}},
		{journal.Query{Filter: journal.Filter{journal.Node: {"a"}}}, []string{"1 a/1", "3 a/2"}},
		{journal.Query{Filter: journal.Filter{journal.Type: {"x", "y"}}}, []string{"4 /0"}},
		{journal.Query{Filter: journal.Filter{journal.Check: {"dns"}, journal.Node: {"b"}}}, []string{"2 b/1"}},
		{journal.Query{Filter: journal.Filter{journal.Cluster: {"c"}}, Backward: true, Limit: 2},
			[]string{"3 a/2", "2 b/1"}},
		{journal.Query{Filter: journal.Filter{journal.Reason: {`" OR 1=1 --`}}}, nil},
	} {
		if diff := cmp.Diff(test.want, s.texts(t, test.q)); diff != "" {
			t.Errorf("%+v: %s", test.q, diff)
		}
	}
	page, err := s.Read(t.Context(), journal.Query{Filter: journal.Filter{journal.Type: {"none"}}, Limit: 9})
	if err != nil || page.Next != 4 {
		t.Errorf("next %d, %v: it is to move past what the filter left out", page.Next, err)
	}
	s.mustClose(t)
	s = openTest(t, dir, Options{})
	s.expect(t, "1 a/1", "2 b/1", "3 a/2", "4 /0")
	if s.Bounds().Journal != bounds.Journal || s.Bounds().Newest != 4 {
		t.Errorf("after a restart: %+v, before %+v", s.Bounds(), bounds)
	}
}

// What is known is not stored again, also after a restart and in another day; what comes late is no duplicate.
func TestDuplicates(t *testing.T) {
	c := newClock()
	dir := t.TempDir()
	s := openTest(t, dir, Options{Now: c.Now})
	foreign := journal.Event{Source: "urn:x", ID: "1", JSON: []byte(`{"a":1}`)}
	s.mustAppend(t, of("a", 1), of("a", 5), foreign)
	for range 2 {
		changed := of("a", 5)
		changed.JSON = []byte(`{"other":true}`)
		got := s.mustAppend(t, of("a", 1), changed, foreign, foreign)
		if diff := cmp.Diff(journal.Appended{Last: 3, Duplicates: 4, Conflicts: 1}, got); diff != "" {
			t.Error(diff)
		}
		s.mustClose(t)
		c.now = c.now.Add(24 * time.Hour)
		s = openTest(t, dir, Options{Now: c.Now})
	}
	got := s.mustAppend(t, of("a", 3), of("a", 3), of("a", 6))
	if diff := cmp.Diff(journal.Appended{Last: 5, New: 2, Duplicates: 1}, got); diff != "" {
		t.Error(diff)
	}
	s.expect(t, "1 a/1", "2 a/5", "3 /0", "4 a/3", "5 a/6")
}

// A day is a file; trimming drops whole files, and what is older than what is kept is refused, not left out.
func TestTrim(t *testing.T) {
	c := newClock()
	s := openTest(t, t.TempDir(), Options{Now: c.Now})
	for day := range uint64(4) {
		s.mustAppend(t, of("a", 2*day+1), of("a", 2*day+2))
		c.now = c.now.Add(24 * time.Hour)
	}
	if err := s.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.expect(t, "1 a/1", "2 a/2", "3 a/3", "4 a/4", "5 a/5", "6 a/6", "7 a/7", "8 a/8")
	if got := s.Expired(Limits{Age: 49 * time.Hour}); got != 4 {
		t.Errorf("two days of four are too old: trim up to %d, want 4", got)
	}
	if got := s.Expired(Limits{Bytes: 1}); got != 6 {
		t.Errorf("only the newest is kept in any case: trim up to %d, want 6", got)
	}
	if err := s.Trim(5); err != nil {
		t.Fatal(err)
	}
	s.expect(t, "5 a/5", "6 a/6", "7 a/7", "8 a/8")
	if files, _ := filepath.Glob(filepath.Join(s.Dir, "*.db")); len(files) != 2 {
		t.Errorf("files left: %v", files)
	}
	_, err := s.Read(t.Context(), journal.Query{After: 2, Limit: 1})
	if trimmed, ok := errors.AsType[*journal.TrimmedError](err); !ok || trimmed.Oldest != 5 {
		t.Errorf("a read from what is gone: %v", err)
	}
	if got := s.mustAppend(t, of("a", 8)); got.Duplicates != 1 {
		t.Errorf("a duplicate of another file: %+v", got)
	}
}

// Whatever happened to the files: what cannot be read is a gap that is logged at the start, never left out in silence;
// the rest can be read, and new events get offsets that were never given.
func TestDamage(t *testing.T) {
	const newest = "00000000000000000003.db"
	zero := func(t *testing.T, name string, from, to int) {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		clear(data[from:min(to, len(data))])
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	flip := func(t *testing.T, name, text string) {
		data, err := os.ReadFile(name)
		if err != nil || !bytes.Contains(data, []byte(text)) {
			t.Fatal(err, "not there:", text)
		}
		if err := os.WriteFile(name, bytes.ReplaceAll(data, []byte(text), []byte(strings.ToUpper(text))),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name   string
		damage func(t *testing.T, dir string)
		want   []string
	}{
		{"none", func(*testing.T, string) {}, []string{"1 a/1", "2 a/2", "3 a/3", "4 a/4", "5 a/9"}},
		{"an event in the newest file", func(t *testing.T, dir string) {
			flip(t, filepath.Join(dir, newest), `"n":3`)
		}, []string{"1 a/1", "2 a/2", "4 a/4", "5 a/9", "gap 3-3"}},
		{"an event in an older file", func(t *testing.T, dir string) {
			flip(t, filepath.Join(dir, "00000000000000000001.db"), `"n":1`)
		}, []string{"2 a/2", "3 a/3", "4 a/4", "5 a/9", "gap 1-1"}},
		{"the head of the newest file", func(t *testing.T, dir string) {
			zero(t, filepath.Join(dir, newest), 0, 4096)
		}, []string{"1 a/1", "2 a/2", "5 a/9", "gap 3-4"}},
		{"all of an older file", func(t *testing.T, dir string) {
			zero(t, filepath.Join(dir, "00000000000000000001.db"), 0, 1<<20)
		}, []string{"3 a/3", "4 a/4", "5 a/9", "gap 1-2"}},
		{"the newest file is gone", func(t *testing.T, dir string) {
			_ = os.Remove(filepath.Join(dir, newest))
		}, []string{"1 a/1", "2 a/2", "5 a/9", "gap 3-4"}},
		{"the newest file is of before", func(t *testing.T, dir string) {
			_ = os.Rename(filepath.Join(dir, "early"), filepath.Join(dir, newest))
		}, []string{"1 a/1", "2 a/2", "3 a/3", "5 a/9", "gap 4-4"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, dir := newClock(), t.TempDir()
			s := openTest(t, dir, Options{Now: c.Now})
			s.mustAppend(t, of("a", 1), of("a", 2))
			c.now = c.now.Add(24 * time.Hour)
			s.mustAppend(t, of("a", 3))
			s.mustClose(t)
			early, err := os.ReadFile(filepath.Join(dir, newest))
			if err != nil || os.WriteFile(filepath.Join(dir, "early"), early, 0o600) != nil {
				t.Fatal(err)
			}
			s = openTest(t, dir, Options{Now: c.Now})
			s.mustAppend(t, of("a", 4))
			s.mustClose(t)
			test.damage(t, dir)
			var log bytes.Buffer
			s = openTest(t, dir, Options{Now: c.Now, Log: slog.New(slog.NewTextHandler(&log, nil))})
			if _, err := s.Check(t.Context()); err != nil {
				t.Error(err)
			}
			s.mustAppend(t, of("a", 9))
			s.expect(t, test.want...)
			told := strings.Contains(log.String(), "cannot be read")
			if gaps := strings.Contains(strings.Join(test.want, " "), "gap"); told != gaps {
				t.Errorf("logged: %s", log.String())
			}
			s.mustClose(t)
			s = openTest(t, dir, Options{Now: c.Now}) // and the next start shows the same, also to who filters
			filtered := s.texts(t, journal.Query{Filter: journal.Filter{journal.Node: {"a"}}})
			if diff := cmp.Diff(test.want, filtered); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// What follows from events is appended right behind them.
func TestDerived(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{Appended: func(records []journal.Record) (derived []journal.Event) {
		for _, r := range records {
			if r.Sequence == 2 {
				derived = append(derived, journal.Event{Source: "/clusters/c/eventcenter", ID: r.ID, JSON: []byte("{}")})
			}
		}
		return derived
	}})
	s.mustAppend(t, of("a", 1), of("a", 2), of("a", 3))
	s.expect(t, "1 a/1", "2 a/2", "3 a/3", "4 /0")
}

// Two processes never write the same journal.
func TestOneWriter(t *testing.T) {
	dir := t.TempDir()
	openTest(t, dir, Options{})
	if s, err := Open(t.Context(), Options{Dir: dir, Log: slog.New(slog.DiscardHandler)}); err == nil {
		t.Errorf("%s is open twice", s.Dir)
	}
}

// A file that is found to be damaged while the center runs gets no more events.
func TestDamagedWhileRunning(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{})
	s.mustAppend(t, of("a", 1))
	s.mu.Lock()
	s.parts[0].damaged = errors.New("as the check of all files notes it")
	s.mu.Unlock()
	s.mustAppend(t, of("a", 2))
	s.mustAppend(t, of("a", 2), of("a", 3))
	s.expect(t, "1 a/1", "2 a/2", "3 a/3")
	if files, _ := filepath.Glob(filepath.Join(s.Dir, "*.db")); len(files) != 2 {
		t.Errorf("files: %v", files)
	}
}
