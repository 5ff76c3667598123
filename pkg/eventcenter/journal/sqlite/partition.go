package sqlite

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	driver "modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// partition is one file: the events of a day, or of a part of it, and the watermarks of all streams at its end.
type partition struct {
	path  string
	first uint64 // from the file name; no offset in the file is smaller

	mu     sync.RWMutex // read-locked by readers, locked while the file is closed, sealed or removed
	db     *sql.DB      // for readers; nil: the partition is removed
	known  filter       // nil: events are looked up in the file
	sealed bool         // without a write-ahead log: readable on a full disk

	damaged atomic.Bool // it is not written to any more
	noIndex atomic.Bool // the index of nodes lacks events

	// Store.mu guards the fields below.
	last   uint64    // first-1 while it is empty
	newest time.Time // when the last event was received
}

// schema is that of a partition. crc covers the offset and the event, since SQLite has no checksums for rows. The index
// of identities holds texts, so that entries of one sender are adjacent: a batch changes few pages.
const schema = `
CREATE TABLE meta(version INTEGER NOT NULL, day TEXT NOT NULL);
CREATE TABLE events(
  offset INTEGER PRIMARY KEY, received INTEGER NOT NULL, crc INTEGER NOT NULL,
  source TEXT NOT NULL, id TEXT NOT NULL, type TEXT NOT NULL, cluster TEXT NOT NULL, node TEXT NOT NULL,
  severity TEXT NOT NULL, "check" TEXT NOT NULL, reason TEXT NOT NULL, stream TEXT NOT NULL,
  sequence INTEGER NOT NULL, event BLOB NOT NULL);
CREATE UNIQUE INDEX events_identity ON events(source, id);
CREATE INDEX events_node ON events(node);
CREATE TABLE streams(
  source TEXT NOT NULL, stream TEXT NOT NULL, highest INTEGER NOT NULL, seen INTEGER NOT NULL,
  PRIMARY KEY(source, stream)) WITHOUT ROWID;` + filterSchema

const (
	version = 3
	suffix  = ".db"

	foreignLog = "-wal.foreign" // next to a sealed file
	columns    = `offset, received, crc, source, id, type, cluster, node, severity, "check", reason, stream, sequence, event`
)

func partitionName(first uint64) string { return fmt.Sprintf("%020d%s", first, suffix) }

// partitionFirst returns the first offset according to the file's name.
func partitionFirst(name string) (uint64, bool) {
	if len(name) != 20+len(suffix) || filepath.Ext(name) != suffix {
		return 0, false
	}
	first, err := strconv.ParseUint(name[:20], 10, 63)
	return first, err == nil
}

// access is the purpose of opening a file.
type access int

const (
	writing       access = iota
	reading              // statements that write fail
	readingSealed        // no one writes: no locks and no checks for changes, which take longer than a page
)

// open opens the file for readers.
func (p *partition) open() (*sql.DB, error) {
	if p.sealed || isFrozen(p.path) {
		return open(p.path, readingSealed)
	}
	return open(p.path, reading)
}

// isFrozen reports whether a file is complete by itself, and on a read-only disk: SQLite could not create the log from
// which it would read.
func isFrozen(path string) bool {
	for _, log := range []string{"-wal", "-journal"} {
		if _, err := os.Lstat(path + log); !errors.Is(err, os.ErrNotExist) {
			return false
		}
	}
	var volume syscall.Statfs_t
	return syscall.Statfs(path, &volume) == nil && volume.Flags&syscall.MS_RDONLY != 0
}

// open opens the database in a file.
func open(path string, a access) (*sql.DB, error) {
	q := url.Values{"_pragma": {"busy_timeout(5000)", "synchronous(FULL)", "trusted_schema(OFF)"}}
	if a == writing {
		q["_pragma"] = append(q["_pragma"], "cache_size(-8192)")
	} else {
		q["_pragma"] = append(q["_pragma"], "query_only(ON)", "cache_size(-512)")
		q.Set("mode", "rw") // a trimmed file is not created again
	}
	if a == readingSealed {
		q.Set("immutable", "1")
	}
	u := url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: q.Encode()}
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if a == writing {
		db.SetMaxOpenConns(1)
		return db, nil
	}
	db.SetMaxOpenConns(8)
	db.SetMaxIdleConns(8) // each append wakes all followers
	if a == readingSealed {
		db.SetMaxIdleConns(1) // each has a cache, and there are many such files
	}
	db.SetConnMaxIdleTime(time.Minute)
	return db, nil
}

// create creates a partition with the known watermarks, and gives it its name only when it is complete.
func (s *Store) create(ctx context.Context, first uint64, day string) (*partition, error) {
	p := &partition{path: filepath.Join(s.Dir, partitionName(first)), first: first, last: first - 1}
	started := p.path + ".new"
	if _, err := os.Lstat(p.path); !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s: a file is in the way: %w", p.path, err)
	}
	db, err := createFile(ctx, started, day, s.writer.streams)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(db.Close(), os.Rename(started, p.path), syncDir(s.Dir)); err != nil {
		return nil, err
	}
	p.db, err = p.open()
	return p, err
}

// createFile creates a file with these watermarks. It removes an unfinished one of this name.
func createFile(ctx context.Context, name, day string, streams map[streamKey]watermark) (*sql.DB, error) {
	if err := errors.Join(remove(name), remove(name+"-wal"), remove(name+"-shm"), remove(name+"-journal")); err != nil {
		return nil, err
	}
	db, err := open(name, writing)
	if err != nil {
		return nil, err
	}
	if err := initialize(ctx, db, day, streams); err != nil {
		return nil, errors.Join(fmt.Errorf("create %s: %w", name, err), db.Close(), remove(name))
	}
	return db, nil
}

// initialize writes the beginning of a file, in one transaction.
func initialize(ctx context.Context, db *sql.DB, day string, streams map[streamKey]watermark) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // no effect after the commit
	if _, err := tx.ExecContext(ctx, schema+positionSchema); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO meta VALUES(?, ?)", version, day); err != nil {
		return err
	}
	if err := saveStreams(ctx, tx, streams); err != nil {
		return err
	}
	return tx.Commit()
}

// load opens an existing partition and reads its state. Damage is recorded in damaged. A file of another format is
// refused, unchanged, unless it is to be converted: all formats have the same events, with other indexes.
func (s *Store) load(ctx context.Context, first uint64, past bool) (*partition, error) {
	p := &partition{path: filepath.Join(s.Dir, partitionName(first)), first: first, last: first - 1}
	format, err := p.loadFormat(ctx, past)
	if failed := s.quarantineLog(p); failed != nil {
		return nil, errors.Join(failed, p.close())
	}
	if err == nil && format != version && (!s.convert || format < 1 || format > version) {
		return nil, errors.Join(fmt.Errorf("%s: its format is %d, this program reads format %d: `eventcenter salvage DIR NEW` "+
			"of the newest version converts older ones", p.path, format, version), p.close())
	}
	if err == nil {
		err = p.loadEnd(ctx)
	}
	if err != nil && !isDamage(err) {
		return nil, errors.Join(fmt.Errorf("%s: %w", p.path, err), p.close())
	}
	if err != nil {
		s.setDamaged(p, err)
	}
	if past && !s.convert {
		if p.known, err = loadFilter(ctx, p.db); err != nil {
			s.Log.Error("load a file's filter of identities failed: reading the file instead", "file", p.path, "err", err)
		}
	}
	return p, nil
}

// loadFormat opens a file and reads its format.
func (p *partition) loadFormat(ctx context.Context, past bool) (format int, err error) {
	p.sealed = past && isSealed(p.path)
	if p.db, err = p.open(); err != nil {
		return 0, err
	}
	err = p.db.QueryRowContext(ctx, "SELECT version FROM meta").Scan(&format)
	return format, err
}

// loadEnd reads the newest offset of a file. If its page is damaged, it reads an index.
func (p *partition) loadEnd(ctx context.Context) error {
	var last, received sql.NullInt64
	err := p.db.QueryRowContext(ctx, "SELECT offset, received FROM events ORDER BY offset DESC LIMIT 1").
		Scan(&last, &received)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil && isDamage(err) {
		const byIndex = "SELECT max(offset) FROM events INDEXED BY events_node WHERE node >= ''"
		err = errors.Join(err, p.db.QueryRowContext(ctx, byIndex).Scan(&last))
		received.Int64 = time.Now().UnixMilli() // unknown: assume now, so that no event is too old for this file
	}
	if last.Valid {
		p.last, p.newest = uint64(last.Int64), time.UnixMilli(received.Int64)
	}
	return err
}

// quarantineLog renames a log next to a sealed file: SQLite would apply it. A read-only journal ignores it.
func (s *Store) quarantineLog(p *partition) error {
	if !p.sealed || s.ReadOnly {
		return nil
	}
	err := os.Rename(p.path+"-wal", p.path+foreignLog)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	s.Log.Error("set aside a log that is not the sealed file's", "file", p.path+foreignLog, "err", err)
	return err
}

// isSealed reports whether a file is complete by itself: its header disables the write-ahead log (bytes 18, 19 of
// https://www.sqlite.org/fileformat2.html#the_database_header) and there is no interrupted change to undo. SQLite
// removes the log before it writes that: a log next to it is another file's, or came back with a power loss.
func isSealed(path string) bool {
	if _, err := os.Lstat(path + "-journal"); !errors.Is(err, os.ErrNotExist) {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var header [20]byte
	_, err = f.ReadAt(header[:], 0)
	return err == nil && header[18] == 1 && header[19] == 1
}

// close waits for readers, then closes the partition.
func (p *partition) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closeLocked()
}

func (p *partition) closeLocked() error {
	if p.db == nil {
		return nil
	}
	err := p.db.Close()
	p.db = nil
	return err
}

// seal removes the write-ahead log of a partition that gets no more events, and creates its filter.
func (p *partition) seal(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sealed && p.known != nil || p.db == nil {
		return nil
	}
	if err := p.closeLocked(); err != nil {
		return err
	}
	db, err := open(p.path, writing)
	if err == nil {
		p.known, err = makeFilter(ctx, db)
		_, sealed := db.ExecContext(ctx, "PRAGMA journal_mode=DELETE")
		sealed = errors.Join(sealed, db.Close())
		p.sealed = sealed == nil
		err = errors.Join(err, sealed)
	}
	var again error
	p.db, again = p.open()
	return errors.Join(err, again)
}

// drop removes the files of the partition.
func (p *partition) drop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(p.closeLocked(), remove(p.path), remove(p.path+"-wal"), remove(p.path+"-shm"),
		remove(p.path+foreignLog))
}

// size returns the size of its files in bytes.
func (p *partition) size() (n int64) {
	for _, name := range []string{p.path, p.path + "-wal"} {
		if info, err := os.Stat(name); err == nil {
			n += info.Size()
		}
	}
	return n
}

// scanRow reads the columns of a row. sound reports whether they are readable and the checksum matches. Without an offset
// there is no row: the reading was interrupted.
func scanRow(rows *sql.Rows) (r journal.Record, sound bool, err error) {
	var received, sequence int64
	var crc uint32
	err = rows.Scan(&r.Offset, &received, &crc, &r.Source, &r.ID, &r.Type, &r.Cluster, &r.Node, &r.Severity, &r.Check,
		&r.Reason, &r.Stream, &sequence, &r.JSON)
	r.Received, r.Sequence = time.UnixMilli(received).UTC(), uint64(sequence)
	if r.Offset == 0 {
		return r, false, errors.Join(err, rows.Err())
	}
	return r, err == nil && crc == checksum(r.Offset, r.JSON), nil
}

func checksum(offset uint64, event []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum(binary.BigEndian.AppendUint64(nil, offset), table), table, event)
}

// errIndex means that the index of identities does not match the events.
var errIndex = errors.New("the index of identities has an event that is not there")

// isDamage reports whether an error means that the file is damaged, or that the disk cannot read a part of it.
func isDamage(err error) bool {
	if errors.Is(err, errIndex) {
		return true
	}
	e, ok := errors.AsType[*driver.Error](err)
	if !ok {
		return false
	}
	switch e.Code() {
	case codes.SQLITE_IOERR_READ, codes.SQLITE_IOERR_SHORT_READ, codes.SQLITE_IOERR_DATA, codes.SQLITE_IOERR_CORRUPTFS:
		return true
	}
	code := e.Code() & 0xff
	return code == codes.SQLITE_CORRUPT || code == codes.SQLITE_NOTADB || code == codes.SQLITE_ERROR
}

func isFull(err error) bool {
	e, ok := errors.AsType[*driver.Error](err)
	return ok && e.Code()&0xff == codes.SQLITE_FULL
}

func remove(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func syncDir(name string) error {
	dir, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
