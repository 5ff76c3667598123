package eventcenter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/sqlite"
)

// migratedDir is where a migrated SQLite journal stays.
const migratedDir = "journal.migrated"

// HasJournal reports whether a directory has a SQLite journal of its own.
func HasJournal(dir string) bool {
	journal := filepath.Join(dir, journalDir)
	_, err := os.Stat(filepath.Join(journal, "uuid"))
	return err == nil && !sqlite.IsCopy(journal)
}

// Migrate passes a directory's SQLite journal to take, which must store all of it, and sets it aside. It refuses while
// a center has it open. The checkpoints stay: they belong to the same journal.
func Migrate(ctx context.Context, dir string, log *slog.Logger, take func(*sqlite.Store) error) (err error) {
	from := filepath.Join(dir, journalDir)
	s, err := sqlite.Open(ctx, sqlite.Options{Dir: from, Log: log})
	if err != nil {
		return fmt.Errorf("the center must be stopped: %w", err)
	}
	if err := errors.Join(take(s), s.Close()); err != nil {
		return err
	}
	return os.Rename(from, filepath.Join(dir, migratedDir))
}
