package sqlite

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
)

func openTest(t *testing.T, dir string, o Options) *Store {
	t.Helper()
	o.Dir, o.BallastBytes = dir, 1<<16
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s, err := Open(t.Context(), o)
	must(t, err)
	t.Cleanup(func() {
		select {
		case <-s.stopping:
		default:
			_ = s.Close()
		}
	})
	return s
}

func of(node string, sequence uint64) journal.Event { return journaltest.Of(node, sequence) }

// Whatever damaged the files: unreadable offsets are a gap that is logged at the start, never skipped silently; the
// rest can be read, and new events get unused offsets.
func TestDamage(t *testing.T) {
	const newest = "00000000000000000003.db"
	zero := func(t *testing.T, name string, from, to int) {
		data, err := os.ReadFile(name)
		must(t, err)
		clear(data[from:min(to, len(data))])
		must(t, os.WriteFile(name, data, 0o600))
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
			c, dir := journaltest.NewClock(), t.TempDir()
			s := openTest(t, dir, Options{Now: c.Now})
			journaltest.Append(t, s, of("a", 1), of("a", 2))
			c.Add(24 * time.Hour)
			journaltest.Append(t, s, of("a", 3))
			must(t, s.Close())
			early, err := os.ReadFile(filepath.Join(dir, newest))
			if err != nil || os.WriteFile(filepath.Join(dir, "early"), early, 0o600) != nil {
				t.Fatal(err)
			}
			s = openTest(t, dir, Options{Now: c.Now})
			journaltest.Append(t, s, of("a", 4))
			must(t, s.Close())
			test.damage(t, dir)
			var log bytes.Buffer
			s = openTest(t, dir, Options{Now: c.Now, Log: slog.New(slog.NewTextHandler(&log, nil))})
			if _, err := s.Check(t.Context(), WithoutRest); err != nil {
				t.Error(err)
			}
			journaltest.Append(t, s, of("a", 9))
			journaltest.Expect(t, s, test.want...)
			told := strings.Contains(log.String(), "read a part of the journal failed")
			if gaps := strings.Contains(strings.Join(test.want, " "), "gap"); told != gaps {
				t.Errorf("logged: %s", log.String())
			}
			must(t, s.Close())
			s = openTest(t, dir, Options{Now: c.Now}) // the next start shows the same, also with a filter
			filtered := journaltest.Texts(t, s, journal.Query{Filter: journal.Filter{journal.Node: {"a"}}})
			if diff := cmp.Diff(test.want, filtered); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Two processes never write the same journal.
func TestOneWriter(t *testing.T) {
	dir := t.TempDir()
	openTest(t, dir, Options{})
	if s, err := Open(t.Context(), Options{Dir: dir, Log: slog.New(slog.DiscardHandler)}); err == nil {
		t.Errorf("%s is open twice", s.Dir)
	}
}

// Only a copy takes records with their offsets: in another journal the writing goroutine gives them.
func TestNoCopy(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{})
	if err := s.Put(t.Context(), []journal.Record{{Offset: 1, Event: of("a", 1)}}, Position{}); !errors.Is(err, errNoCopy) {
		t.Error(err)
	}
	if _, _, err := s.Plan(t.Context(), time.Now(), nil); !errors.Is(err, errNoCopy) {
		t.Error(err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
