// Package controltest is the test suite for implementations of control.Store.
package controltest

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/web/control"
)

// Run tests an implementation. open returns the same store, opened again, with the data written before.
func Run(t *testing.T, open func(*testing.T) control.Store) {
	t.Run("writes by whom has seen", func(t *testing.T) { conflicts(t, open) })
	t.Run("list", func(t *testing.T) { list(t, open) })
	t.Run("names and sizes", func(t *testing.T) { problems(t, open) })
	t.Run("one of many writers wins", func(t *testing.T) { race(t, open) })
}

func opened(t *testing.T, open func(*testing.T) control.Store) control.Store {
	t.Helper()
	s := open(t)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func wants(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func conflicts(t *testing.T, open func(*testing.T) control.Store) {
	s, ctx := opened(t, open), t.Context()
	_, err := s.Get(ctx, "cursors", "a")
	wants(t, "get of nothing", err, control.ErrNotFound)
	wants(t, "delete of nothing", s.Delete(ctx, "cursors", "a", 1), control.ErrNotFound)
	_, err = s.Put(ctx, "cursors", "a", []byte("x"), 7)
	wants(t, "change of nothing", err, control.ErrConflict)
	first, err := s.Put(ctx, "cursors", "a", []byte("one"), 0)
	if err != nil || first == 0 {
		t.Fatal(first, err)
	}
	_, err = s.Put(ctx, "cursors", "a", []byte("two"), 0)
	wants(t, "created twice", err, control.ErrConflict)
	second, err := s.Put(ctx, "cursors", "a", []byte("two"), first)
	if err != nil || second <= first {
		t.Fatal(second, err)
	}
	_, err = s.Put(ctx, "cursors", "a", []byte("three"), first)
	wants(t, "a revision of before", err, control.ErrConflict)
	wants(t, "delete of what was changed", s.Delete(ctx, "cursors", "a", first), control.ErrConflict)
	wants(t, "delete of any revision", s.Delete(ctx, "cursors", "a", 0), control.ErrConflict)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = opened(t, open)
	got, err := s.Get(ctx, "cursors", "a")
	if diff := cmp.Diff(control.Record{Key: "a", Value: []byte("two"), Revision: second}, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
	if err := s.Delete(ctx, "cursors", "a", second); err != nil {
		t.Fatal(err)
	}
	_, err = s.Get(ctx, "cursors", "a")
	wants(t, "get of what was deleted", err, control.ErrNotFound)
	if again, err := s.Put(ctx, "cursors", "a", nil, 0); err != nil || again <= second {
		t.Errorf("made again with revision %d after %d: %v", again, second, err)
	}
	wants(t, "delete by a revision of the one before", s.Delete(ctx, "cursors", "a", second), control.ErrConflict)
}

func list(t *testing.T, open func(*testing.T) control.Store) {
	s, ctx := opened(t, open), t.Context()
	for _, key := range []string{"b.2", "b.10", "b-1", "c", "B.1", "b"} {
		if _, err := s.Put(ctx, "letters", key, []byte(key), 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Put(ctx, "others", "b.3", nil, 0); err != nil {
		t.Fatal(err)
	}
	for prefix, want := range map[string][]string{"b.": {"b.10", "b.2"}, "": {"B.1", "b", "b-1", "b.10", "b.2", "c"},
		"d": nil, "b.10": {"b.10"}} {
		records, err := s.List(ctx, "letters", prefix)
		var got []string
		for _, r := range records {
			got = append(got, r.Key)
			if string(r.Value) != r.Key || r.Revision == 0 {
				t.Errorf("%+v", r)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%q: %v\n%s", prefix, err, diff)
		}
	}
	if records, err := s.List(ctx, "nothing-yet", ""); len(records) > 0 || err != nil {
		t.Error(records, err)
	}
}

func problems(t *testing.T, open func(*testing.T) control.Store) {
	s, ctx := opened(t, open), t.Context()
	for _, test := range []struct {
		bucket, key string
		size        int
	}{
		{"", "a", 0}, {"A", "a", 0}, {"a.b", "a", 0}, {strings.Repeat("a", 33), "a", 0}, {"a", "", 0}, {"a", "a b", 0},
		{"a", "a..b", 0}, {"a", ".a", 0}, {"a", "a*", 0}, {"a", "a/b", 0}, {"a", "ä", 0},
		{"a", strings.Repeat("a", 256), 0}, {"a", "a", control.MaxValue + 1},
	} {
		if _, err := s.Put(ctx, test.bucket, test.key, make([]byte, test.size), 0); err == nil ||
			errors.Is(err, control.ErrConflict) {
			t.Errorf("%.40q/%.40q with %d bytes: %v", test.bucket, test.key, test.size, err)
		}
	}
	if _, err := s.Put(ctx, "a", strings.Repeat("k", 255), make([]byte, control.MaxValue), 0); err != nil {
		t.Error(err)
	}
	if r, err := s.Get(ctx, "a", strings.Repeat("k", 255)); err != nil || len(r.Value) != control.MaxValue {
		t.Error(len(r.Value), err)
	}
}

// race lets writers increment a record concurrently: no increment is lost.
func race(t *testing.T, open func(*testing.T) control.Store) {
	s, ctx := opened(t, open), t.Context()
	const writers, each = 4, 10
	if _, err := s.Put(ctx, "counters", "n", []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for done := 0; done < each; {
				r, err := s.Get(ctx, "counters", "n")
				if err != nil {
					t.Error(err)
					return
				}
				var n int
				_, _ = fmt.Sscan(string(r.Value), &n)
				switch _, err := s.Put(ctx, "counters", "n", fmt.Append(nil, n+1), r.Revision); {
				case err == nil:
					done++
				case !errors.Is(err, control.ErrConflict):
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if r, err := s.Get(ctx, "counters", "n"); err != nil || string(r.Value) != fmt.Sprint(writers*each) {
		t.Errorf("%s, %v", r.Value, err)
	}
}
