package eventcenter

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// A backup or salvaged copy of a damaged directory has all readable data, and lists the lost events.
func TestDamagedDirectory(t *testing.T) {
	dir, archive := t.TempDir(), filepath.Join(t.TempDir(), "archive")
	days(t, dir)
	must(t, os.WriteFile(filepath.Join(dir, ControlFile), []byte("not a database"), 0o640))
	name := filepath.Join(dir, journalDir, "00000000000000000002.db")
	data, err := os.ReadFile(name)
	must(t, err)
	if !bytes.Contains(data, []byte(`"severity":"fatal"`)) {
		t.Fatal("the event is not there")
	}
	must(t, os.WriteFile(name, bytes.Replace(data, []byte(`"severity":"fatal"`), []byte(`"severity":"Fatal"`), 1), 0o600))

	salvaged := filepath.Join(t.TempDir(), "new")
	done, err := Salvage(t.Context(), dir, salvaged, slog.New(slog.DiscardHandler))
	if err != nil || done.Events != 2 || len(done.Gaps) != 1 || done.Gaps[0].From != 2 || done.Gaps[0].To != 2 {
		t.Errorf("%+v: %v", done, err)
	}
	if info, err := os.Stat(filepath.Join(salvaged, ControlFile)); err != nil || info.Mode().Perm() != 0o640 {
		t.Error("the control store is not copied as it is", err)
	}
	c, _ := open(t, salvaged, journal.Limits{})
	if c.faults() != 2 || c.Journal.Bounds().Newest != 3 {
		t.Errorf("%d faults, newest %d", c.faults(), c.Journal.Bounds().Newest)
	}
	must(t, c.Close())
	if _, err := Salvage(t.Context(), dir, salvaged, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("salvaged into a directory that is there")
	}

	must(t, os.Remove(filepath.Join(dir, ControlFile)))
	m, err := Backup(t.Context(), dir, archive)
	if err != nil || len(m.Gaps) != 1 || m.Gaps[0].From != 2 || m.Gaps[0].To != 2 {
		t.Fatalf("%+v: %v", m, err)
	}
	restored := filepath.Join(t.TempDir(), "restored")
	if _, err := Restore(archive, restored); err != nil {
		t.Fatal(err)
	}
	c, _ = open(t, restored, journal.Limits{})
	if c.faults() != 2 {
		t.Errorf("%d faults after a restore", c.faults())
	}
	must(t, c.Close())
}
