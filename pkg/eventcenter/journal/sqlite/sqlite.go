// Package sqlite is the journal of a single event center, without other services: SQLite files in one directory.
//
// Each day has its own file, named after its first offset. To drop a day is to remove a file: this needs no space on a
// full disk, frees the space at once, and touches no other day; a damaged file damages no other. (Tables in one file
// would keep their pages inside it, and share its damage.) One goroutine writes, all waiting requests in one
// transaction; the file "newest" repeats the last acknowledged offset, so that a lost end of a file is noticed and its
// offsets are never reused.
package sqlite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/nodeagent/nodeagent/internal/atomicfile"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// Options are those of a journal.
type Options struct {
	Dir string
	Log *slog.Logger
	Now func() time.Time // nil: time.Now

	// Appended is called with all new records, in the order of offsets, before Append returns. The events that it
	// returns are appended before any others.
	Appended func([]journal.Record) []journal.Event

	BallastBytes int64         // of the file to remove on a full disk; 0: 8 MiB
	Keep         time.Duration // how long a silent stream is remembered; 0: 30 days

	// Copy opens a copy of the journal with this UUID: Put adds records with their offsets, from one goroutine. Records
	// lost at the end by a power loss are copied again.
	Copy string

	ReadOnly bool // while another process has it open for writing: a view of its state now

	convert bool // read files of older formats, too
}

// Store is an open journal. Only one process at a time has it open for writing.
type Store struct {
	Options
	id       string
	lock     *os.File
	mark     *os.File // "newest"
	requests chan *request
	stopping chan struct{}
	stopped  chan struct{}

	writer writer // only for the writing goroutine

	mu       sync.Mutex   // guards the fields below
	parts    []*partition // in the order of offsets
	newest   uint64
	gaps     []journal.Gap // in order, none overlapping
	fullFrom time.Time     // since when the disk is full; zero: not full
	trimmed  time.Time     // when files were dropped, or the journal was opened
	changed  chan struct{}
}

// ErrClosed means that the journal was closed.
var ErrClosed = errors.New("the journal is closed")

// Open opens the journal in a directory, or creates it, and checks it: all files are there, the newest is sound, and
// its end has all acknowledged events. Missing or damaged offsets become a gap and are logged.
func Open(ctx context.Context, o Options) (*Store, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.BallastBytes, o.Keep = cmp.Or(o.BallastBytes, 8<<20), cmp.Or(o.Keep, 30*24*time.Hour)
	s := &Store{Options: o, requests: make(chan *request, maxWaiting), stopping: make(chan struct{}),
		stopped: make(chan struct{}), changed: make(chan struct{}), trimmed: o.Now()}
	err := s.open(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("journal %s: %w", o.Dir, err), s.closeFiles())
	}
	if o.ReadOnly || o.Copy != "" {
		close(s.stopped)
		return s, nil
	}
	go s.write()
	return s, nil
}

func (s *Store) open(ctx context.Context) error {
	dir, err := filepath.Abs(s.Dir)
	if err != nil {
		return err
	}
	s.Dir = dir
	if !s.ReadOnly {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if s.lock, err = lockDir(dir); err != nil {
			return err
		}
	}
	if s.id, err = s.identity(); err != nil {
		return err
	}
	marked := uint64(0)
	if s.Copy == "" {
		marked, err = s.readMark() // before the files, so that events appended in between are not missed
	}
	if err != nil {
		s.Log.Error("read the mark of the newest offset failed: cannot tell whether the journal's end is complete", "err", err)
	}
	if s.parts, err = s.loadAll(ctx); err != nil {
		return err
	}
	if err := s.check(ctx, marked); err != nil || s.ReadOnly {
		return err
	}
	if err := s.openWriter(ctx); err != nil {
		return err
	}
	if err := s.makeBallast(); err != nil {
		s.Log.Error("write the ballast failed: the disk is full", "err", err)
		s.fullFrom = s.Now()
	}
	return nil
}

// lockDir ensures that no other process writes.
func lockDir(dir string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("in use by another process: %w", err), lock.Close())
	}
	return lock, nil
}

// HoldStopped keeps a center from opening the journal in a directory until release is called, and fails if one has it
// open. It changes no file. If the lock cannot be asked, as on a damaged disk, it holds nothing.
func HoldStopped(dir string) (release func() error, err error) {
	release = func() error { return nil }
	if lock, unknown := os.Open(filepath.Join(dir, "lock")); unknown == nil {
		release = lock.Close
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errors.Join(errors.New("in use by another process: stop the center first"), release())
	}
	return release, nil
}

// identity returns the UUID of the journal, a new one if there is no journal.
func (s *Store) identity() (string, error) {
	name := filepath.Join(s.Dir, "uuid")
	if err := s.copyOrOriginal(); err != nil {
		return "", err
	}
	data, err := os.ReadFile(name)
	if err == nil {
		id := strings.TrimSpace(string(data))
		if len(id) != 36 {
			return "", fmt.Errorf("%s: no UUID: %.40q", name, id)
		}
		if s.Copy != "" && s.Copy != id {
			return "", fmt.Errorf("%w: it is %s, not %s", ErrOther, id, s.Copy)
		}
		return id, nil
	}
	files, globErr := fs.Glob(os.DirFS(s.Dir), "*"+suffix)
	if !errors.Is(err, os.ErrNotExist) || globErr != nil || len(files) > 0 || s.ReadOnly {
		return "", fmt.Errorf("the journal's UUID: %w", errors.Join(err, globErr))
	}
	id := s.Copy
	if id == "" {
		id = string(uuid.NewUUID())
	}
	return id, writeFile(name, id+"\n")
}

// writeFile writes a small file durably.
func writeFile(name, text string) error {
	return errors.Join(atomicfile.WriteData(name, []byte(text)), syncDir(filepath.Dir(name)))
}

func (s *Store) loadAll(ctx context.Context) (parts []*partition, err error) {
	entries, err := os.ReadDir(s.Dir) // sorted by name, and so by offset
	if err != nil {
		return nil, err
	}
	var all []uint64
	for _, entry := range entries {
		if first, ok := partitionFirst(entry.Name()); ok {
			all = append(all, first)
		}
	}
	for i, first := range all {
		p, err := s.load(ctx, first, i < len(all)-1)
		if err != nil {
			return parts, err
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// markFile repeats the newest offset.
const markFile = "newest"

// readMark opens the mark and returns the last acknowledged offset, 0 if there is none.
func (s *Store) readMark() (marked uint64, err error) {
	mode := os.O_CREATE | os.O_RDWR
	if s.ReadOnly {
		mode = os.O_RDONLY
	}
	s.mark, err = os.OpenFile(filepath.Join(s.Dir, markFile), mode, 0o600)
	if err != nil {
		return 0, err
	}
	text := make([]byte, 64)
	n, _ := s.mark.ReadAt(text, 0)
	if n == 0 {
		return 0, nil
	}
	var crc uint32
	if _, err := fmt.Sscanf(string(text[:n]), "%020d %08x\n", &marked, &crc); err != nil {
		return 0, fmt.Errorf("%.40q: %w", text[:n], err)
	}
	if crc != checksum(marked, nil) {
		return 0, fmt.Errorf("%.40q: wrong checksum", text[:n])
	}
	return marked, nil
}

// writeMark stores the newest offset next to the journal. It is not flushed: it survives a killed process, and after a
// power loss it is older than the journal, never newer.
func (s *Store) writeMark(newest uint64) error {
	_, err := s.mark.WriteAt(markText(newest), 0)
	return err
}

func markText(newest uint64) []byte {
	return fmt.Appendf(nil, "%020d %08x\n", newest, checksum(newest, nil))
}

// Bounds returns the present bounds of the journal.
func (s *Store) Bounds() journal.Bounds {
	s.mu.Lock()
	defer s.mu.Unlock()
	return journal.Bounds{Journal: s.id, Oldest: s.oldest(), Newest: s.newest, Changed: s.changed}
}

// oldest needs mu.
func (s *Store) oldest() uint64 {
	if len(s.parts) == 0 {
		return s.newest + 1
	}
	return s.parts[0].first
}

// Health returns the state of the files.
func (s *Store) Health() journal.Health {
	s.mu.Lock()
	h := journal.Health{FullSince: s.fullFrom, Gaps: slices.Clone(s.gaps), Partitions: len(s.parts)}
	parts := slices.Clone(s.parts)
	s.mu.Unlock()
	for _, p := range parts {
		h.Bytes += p.size()
	}
	return h
}

// Close stops the writer and closes all files. Batches that Append has not acknowledged are not stored.
func (s *Store) Close() error {
	close(s.stopping)
	<-s.stopped
	var err error
	if s.mark != nil && !s.ReadOnly {
		err = s.mark.Sync()
	}
	return errors.Join(err, s.closeFiles())
}

func (s *Store) closeFiles() error {
	var errs []error
	for _, p := range s.partitions() {
		errs = append(errs, p.close())
	}
	errs = append(errs, s.writer.close())
	for _, file := range []*os.File{s.mark, s.lock} {
		if file != nil {
			errs = append(errs, file.Close())
		}
	}
	return errors.Join(errs...)
}

// ballast returns the file to remove on a full disk.
func (s *Store) ballast() string { return filepath.Join(s.Dir, "ballast") }

func (s *Store) makeBallast() error {
	if info, err := os.Stat(s.ballast()); err == nil && info.Size() == s.BallastBytes {
		return nil
	}
	f, err := os.OpenFile(s.ballast(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, s.BallastBytes))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, remove(s.ballast()))
	}
	return nil
}

// free returns the free space on the disk in bytes.
func (s *Store) free() (int64, error) {
	var stat syscall.Statfs_t
	err := syscall.Statfs(s.Dir, &stat)
	return int64(stat.Bavail) * stat.Bsize, err
}
