package eventcenter

import (
	"archive/tar"
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
	addCopy := func(file, name string) error { return errors.Join(b.add(file, name), os.Remove(file)) }
	copied := filepath.Join(scratch, ControlFile)
	err = control.Copy(ctx, filepath.Join(dir, ControlFile), copied)
	switch {
	case err == nil:
		err = addCopy(copied, ControlFile)
	case errors.Is(err, os.ErrNotExist) && sqlite.IsCopy(filepath.Join(dir, journalDir)): // replicas share another
		err = nil
	case ctx.Err() == nil: // the journal is worth more
		b.Unread, err = append(b.Unread, ControlFile+": "+err.Error()), nil
	}
	if err != nil {
		return err
	}
	days, err := report.Days(filepath.Join(dir, reportsDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, day := range days {
		name := filepath.Join(reportsDir, report.File(day))
		if err := b.add(filepath.Join(dir, name), name); err != nil {
			return err
		}
	}
	done, err := sqlite.Copy(ctx, filepath.Join(dir, journalDir), scratch, slog.New(slog.DiscardHandler),
		func(file string) error { return addCopy(file, journalDir+"/"+filepath.Base(file)) })
	if err != nil {
		return err
	}
	b.Journal, b.Newest, b.Gaps = done.Journal, done.Newest, done.Gaps
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
	was := m.Journal
	if m.Journal, err = sqlite.Renew(filepath.Join(scratch, journalDir)); err != nil {
		return m, err
	}
	if err := os.MkdirAll(filepath.Join(dir, reportsDir), 0o700); err != nil {
		return m, err
	}
	for _, f := range m.Files {
		if err := adopt(filepath.Join(scratch, f.Name), filepath.Join(dir, f.Name), was, m.Journal); err != nil {
			return m, err
		}
	}
	return m, os.Rename(filepath.Join(scratch, journalDir), filepath.Join(dir, journalDir))
}

// adopt moves a file of a backup to its place, with the journal's new UUID. The journal's own files stay.
func adopt(from, to, was, journalID string) error {
	name := filepath.Base(to)
	switch {
	case name == ControlFile:
		return os.Rename(from, to)
	case name == baseFile || name == checkpointFile:
		m, err := loadModel(from, was)
		if err == nil {
			_, err = save(to, journalID, m, func() error { return nil })
		}
		return err
	case report.IsDay(name):
		return report.Adopt(from, to, journalID)
	}
	return nil
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
			if err := json.NewDecoder(io.LimitReader(in, maxManifest)).Decode(&m); err != nil {
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
