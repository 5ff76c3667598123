package eventcenter

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/sqlite"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/report"
	control "github.com/nodeagent/nodeagent/pkg/web/control/sqlite"
)

// Manifest is the last file of a backup: without it, or if a file does not match it, the backup is invalid.
type Manifest struct {
	Version int          `json:"version"`
	Journal string       `json:"journal"`
	Newest  uint64       `json:"newest,string"`
	Files   []BackupFile `json:"files"`

	Gaps   []journal.Gap `json:"gaps,omitempty"`   // of lost events: the backup has the rest
	Unread []string      `json:"unread,omitempty"` // files that the backup lacks, with the reason
}

// BackupFile is a file in a backup.
type BackupFile struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

const (
	manifestFile    = "manifest.json"
	manifestVersion = 1
	maxManifest     = 1 << 20
)

// Backup writes the journal, the checkpoints and the control store of a directory into an archive, even while a center
// runs on it. The other files are older than the journal, so that a restored center applies and delivers the rest. Of a
// damaged journal it copies all readable events, and lists the others; a damaged control store it leaves out and names.
func Backup(ctx context.Context, dir, archive string) (m Manifest, err error) {
	f, err := os.OpenFile(archive, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return m, err
	}
	b := backup{Manifest: Manifest{Version: manifestVersion}, out: tar.NewWriter(f)}
	err = b.write(ctx, dir)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return m, errors.Join(err, os.Remove(archive))
	}
	return b.Manifest, nil
}

type backup struct {
	Manifest
	out *tar.Writer
}

func (b *backup) write(ctx context.Context, dir string) (err error) {
	for _, name := range []string{baseFile, checkpointFile} {
		if err := b.add(filepath.Join(dir, name), name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	scratch, err := os.MkdirTemp(dir, "backup-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch) // our own; leftovers are harmless
	copied := filepath.Join(scratch, ControlFile)
	err = control.Copy(ctx, filepath.Join(dir, ControlFile), copied)
	switch {
	case err == nil:
		err = errors.Join(b.add(copied, ControlFile), os.Remove(copied))
	case errors.Is(err, os.ErrNotExist):
		err = nil
	case ctx.Err() == nil: // the journal is worth more
		b.Unread, err = append(b.Unread, ControlFile+": "+err.Error()), nil
	}
	if err != nil {
		return err
	}
	days, err := dayFiles(dir)
	if err != nil {
		return err
	}
	for _, name := range days {
		if err := b.add(filepath.Join(dir, name), name); err != nil {
			return err
		}
	}
	s, err := sqlite.Open(ctx, sqlite.Options{Dir: filepath.Join(dir, journalDir),
		Log: slog.New(slog.DiscardHandler), ReadOnly: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	b.Journal, b.Newest = s.Bounds().Journal, s.Bounds().Newest
	_, err = s.Copies(ctx, scratch, func(file string) error {
		return errors.Join(b.add(file, journalDir+"/"+filepath.Base(file)), os.Remove(file))
	})
	if err != nil {
		return err
	}
	if b.Gaps, err = s.Check(ctx, sqlite.WithoutRest); err != nil {
		return err
	}
	text, err := json.MarshalIndent(b.Manifest, "", "  ")
	if err != nil {
		return err
	}
	head := &tar.Header{Name: manifestFile, Mode: 0o600, Size: int64(len(text))}
	if err := b.out.WriteHeader(head); err != nil {
		return err
	}
	_, err = b.out.Write(text)
	return errors.Join(err, b.out.Close())
}

// dayFiles returns the report files in a directory.
func dayFiles(dir string) (names []string, err error) {
	entries, err := os.ReadDir(filepath.Join(dir, reportsDir))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	for _, entry := range entries {
		if report.IsDay(entry.Name()) {
			names = append(names, reportsDir+"/"+entry.Name())
		}
	}
	return names, err
}

// add copies a file into the archive.
func (b *backup) add(file, name string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := b.out.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: info.Size()}); err != nil {
		return err
	}
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(b.out, sum), f); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	b.Files = append(b.Files, BackupFile{name, info.Size(), hex.EncodeToString(sum.Sum(nil))})
	return nil
}

// Restore creates a directory from an archive, completely or not at all. The journal gets a new UUID: events after the
// backup are missing, so their offsets will be reused.
func Restore(archive, dir string) (m Manifest, err error) {
	for _, is := range []struct{ what, name string }{{"journal", journalDir}, {"control store", ControlFile}} {
		if _, err := os.Lstat(filepath.Join(dir, is.name)); !errors.Is(err, os.ErrNotExist) {
			return m, fmt.Errorf("%s: there is a %s already: %w", dir, is.what, errors.Join(err, os.ErrExist))
		}
	}
	f, err := os.Open(archive)
	if err != nil {
		return m, err
	}
	defer f.Close()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return m, err
	}
	scratch, err := os.MkdirTemp(dir, "restore-")
	if err != nil {
		return m, err
	}
	defer os.RemoveAll(scratch) // our own; leftovers are harmless
	if m, err = unpack(f, scratch); err != nil {
		return m, fmt.Errorf("%s: %w", archive, err)
	}
	backedUp := m.Journal
	if m.Journal, err = sqlite.Renew(filepath.Join(scratch, journalDir)); err != nil {
		return m, err
	}
	for _, name := range []string{baseFile, checkpointFile} {
		if err := adopt(filepath.Join(scratch, name), filepath.Join(dir, name), backedUp, m.Journal); err != nil {
			return m, err
		}
	}
	err = os.Rename(filepath.Join(scratch, ControlFile), filepath.Join(dir, ControlFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) { // a backup from before subscriptions existed
		return m, err
	}
	days, err := dayFiles(scratch)
	if err = errors.Join(err, os.MkdirAll(filepath.Join(dir, reportsDir), 0o700)); err != nil {
		return m, err
	}
	for _, name := range days {
		if err := report.Adopt(filepath.Join(scratch, name), filepath.Join(dir, name), m.Journal); err != nil {
			return m, err
		}
	}
	return m, os.Rename(filepath.Join(scratch, journalDir), filepath.Join(dir, journalDir))
}

// unpack writes the files of an archive and compares them with its manifest.
func unpack(r io.Reader, dir string) (m Manifest, err error) {
	for _, name := range []string{journalDir, reportsDir} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			return m, err
		}
	}
	var found []BackupFile
	for in := tar.NewReader(r); ; {
		head, err := in.Next()
		if err != nil {
			return m, fmt.Errorf("no complete backup: %w", err)
		}
		if head.Name == manifestFile {
			text, err := io.ReadAll(io.LimitReader(in, maxManifest))
			if err != nil {
				return m, err
			}
			if err := json.Unmarshal(bytes.TrimSpace(text), &m); err != nil {
				return m, fmt.Errorf("manifest: %w", err)
			}
			break
		}
		if !expected(head.Name) {
			return m, fmt.Errorf("%.100q: no file of a backup", head.Name)
		}
		file, err := extract(in, dir, head.Name)
		if err != nil {
			return m, err
		}
		found = append(found, file)
	}
	if m.Version != manifestVersion {
		return m, fmt.Errorf("its format is %d, this program reads %d", m.Version, manifestVersion)
	}
	if !slices.Equal(found, m.Files) {
		return m, errors.New("its files are not those of its manifest: it is damaged")
	}
	return m, nil
}

// expected reports whether a backup may contain a file of this name. Other files are not written.
func expected(name string) bool {
	dir, base := filepath.Split(name)
	return name == baseFile || name == checkpointFile || name == ControlFile ||
		dir == journalDir+"/" && sqlite.IsPartition(base) || dir == reportsDir+"/" && report.IsDay(base)
}

func extract(r io.Reader, dir, name string) (BackupFile, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return BackupFile{}, err
	}
	sum := sha256.New()
	size, err := io.Copy(io.MultiWriter(f, sum), r) //nolint:gosec // the operator's own archive, however large
	return BackupFile{name, size, hex.EncodeToString(sum.Sum(nil))}, errors.Join(err, f.Sync(), f.Close())
}

// adopt writes a checkpoint from a backup with the journal's new UUID.
func adopt(from, to, backedUp, journalID string) error {
	m, err := loadModel(from, backedUp)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = save(to, journalID, m, func() error { return nil })
	return err
}
