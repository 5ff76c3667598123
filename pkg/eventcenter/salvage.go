package eventcenter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/sqlite"
)

// Salvaged is the result of Salvage.
type Salvaged struct {
	sqlite.Copied
	Unread []string `json:"unread"` // other files that could not be read
}

// Salvage copies all readable data of a center's directory into a new one that a center can use, or makes none. The
// center must be stopped. It does not change the old directory.
func Salvage(ctx context.Context, from, to string, log *slog.Logger) (done Salvaged, err error) {
	damaged := filepath.Join(from, journalDir)
	release, err := sqlite.HoldStopped(damaged)
	if err != nil {
		return done, fmt.Errorf("salvage %s: %w", damaged, err)
	}
	defer func() { err = errors.Join(err, release()) }()
	if err := os.Mkdir(to, 0o700); err != nil {
		return done, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(to)) // otherwise a retry would refuse it
		}
	}()
	if done.Copied, err = sqlite.Salvage(ctx, damaged, filepath.Join(to, journalDir), log); err != nil {
		return done, fmt.Errorf("salvage %s: %w", damaged, err)
	}
	err = filepath.WalkDir(from, func(name string, entry fs.DirEntry, failed error) error {
		relative, err := filepath.Rel(from, name)
		switch {
		case err != nil:
			return err
		case relative == journalDir:
			return fs.SkipDir
		case failed == nil && entry.IsDir():
			return os.MkdirAll(filepath.Join(to, relative), 0o700)
		case failed == nil && entry.Type().IsRegular():
			failed = copyFile(name, filepath.Join(to, relative))
		}
		if failed != nil {
			log.Error("copy a file failed", "file", name, "err", failed)
			done.Unread = append(done.Unread, relative)
		}
		return nil
	})
	return done, err
}

// copyFile copies a small file with its mode: the control store, or a report.
func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	//nolint:gosec // both are folders that the caller named
	return errors.Join(os.WriteFile(to, data, info.Mode().Perm()), os.Chmod(to, info.Mode().Perm()))
}
