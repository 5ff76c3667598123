package sqlite_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/web/control"
	"github.com/nodeagent/nodeagent/pkg/web/control/controltest"
	"github.com/nodeagent/nodeagent/pkg/web/control/sqlite"
)

// opener opens a separate file for each test, the same one each time.
func opener(t *testing.T) func(*testing.T) control.Store {
	dirs := map[string]string{}
	return func(sub *testing.T) control.Store {
		sub.Helper()
		if dirs[sub.Name()] == "" {
			dirs[sub.Name()] = t.TempDir()
		}
		s, err := sqlite.Open(sub.Context(), filepath.Join(dirs[sub.Name()], "control.db"))
		if err != nil {
			sub.Fatal(err)
		}
		return s
	}
}

func TestConformance(t *testing.T) { controltest.Run(t, opener(t)) }

// A copy can be made while the store is open; an invalid file is refused, and no other user may read the store.
func TestFile(t *testing.T) {
	dir := t.TempDir()
	file, to := filepath.Join(dir, "control.db"), filepath.Join(dir, "copy.db")
	s, err := sqlite.Open(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Put(t.Context(), "cursors", "a", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	if err := sqlite.Copy(t.Context(), file, to); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{file, to} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v %v", info, err)
		}
	}
	copied, err := sqlite.Open(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	defer copied.Close()
	if r, err := copied.Get(t.Context(), "cursors", "a"); err != nil || string(r.Value) != "1" {
		t.Error(r, err)
	}
	broken := filepath.Join(dir, "broken.db")
	if err := os.WriteFile(broken, []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := sqlite.Open(t.Context(), broken); err == nil {
		t.Error("a file of text is taken", s.Close())
	}
}
