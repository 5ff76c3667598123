package eventcenter

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/expecttest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// A backup or salvaged copy of a damaged directory has all readable data, and lists the lost events.
func TestDamagedDirectory(t *testing.T) {
	dir, archive := t.TempDir(), filepath.Join(t.TempDir(), "archive")
	days(t, dir)
	expecttest.OK(t, os.WriteFile(filepath.Join(dir, ControlFile), []byte("not a database"), 0o640))
	damaged := filepath.Join(dir, journalDir, "00000000000000000002.db")
	edit(t, damaged, `"severity":"fatal"`, `"severity":"Fatal"`)
	lost := []journal.Gap{{From: 2, To: 2, Reason: "wrong checksum in " + damaged}}

	salvaged := filepath.Join(t.TempDir(), "new")
	done, err := Salvage(t.Context(), dir, salvaged, slog.New(slog.DiscardHandler))
	expecttest.OK(t, err)
	expecttest.Equal(t, "salvaged", 2, done.Events)
	expecttest.Equal(t, "lost", lost, done.Gaps)
	if info, err := os.Stat(filepath.Join(salvaged, ControlFile)); err != nil || info.Mode().Perm() != 0o640 {
		t.Error("the control store is not copied as it is", err)
	}
	if _, err := Salvage(t.Context(), dir, salvaged, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("salvaged into a directory that is there")
	}

	expecttest.OK(t, os.Remove(filepath.Join(dir, ControlFile)))
	m, err := Backup(t.Context(), dir, archive)
	expecttest.OK(t, err)
	expecttest.Equal(t, "lost", lost, m.Gaps)
	restored := filepath.Join(t.TempDir(), "restored")
	_, err = Restore(archive, restored)
	expecttest.OK(t, err)
	for name, dir := range map[string]string{"salvaged": salvaged, "restored": restored} {
		c, _ := open(t, dir, journal.Limits{})
		expecttest.Equal(t, name+" faults", 2, c.faults())
		expecttest.Equal(t, name+" newest", 3, c.Journal.Bounds().Newest)
		expecttest.OK(t, c.Close())
	}
}
