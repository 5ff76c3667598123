package sqlite

import (
	"context"
	"crypto/sha256"
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
	"time"

	driver "modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// partition is one file: the events of one day, or of a part of it, and the watermarks of all streams when it ends.
type partition struct {
	path    string
	first   uint64 // in the file's name; every offset in it is at least this
	version int    // of its format
	index   index  // nothing where the format is older than withRuns

	mu     sync.RWMutex // held for reading by readers, for writing while the file is closed, sealed or removed
	db     *sql.DB      // for readers; nil: the partition is gone
	asking sync.Mutex   // guards asked
	asked  statements   // of db, for readers; see rows
	sealed bool         // it has no write-ahead log: it can be read on a full disk

	// What follows is guarded by Store.mu.
	last    uint64    // first-1 while it is empty
	newest  time.Time // when the last was received
	damaged error     // its structure is: nothing more is written to it
}

// schema is that of a partition. crc is over the offset and the event, since SQLite has no checksum of rows. runs is the
// index, see index.go; the watermarks of streams are as old as the last run: later ones follow from the events.
const schema = `
CREATE TABLE meta(version INTEGER NOT NULL, day TEXT NOT NULL);
CREATE TABLE events(
  offset INTEGER PRIMARY KEY, received INTEGER NOT NULL, crc INTEGER NOT NULL,
  source TEXT NOT NULL, id TEXT NOT NULL, type TEXT NOT NULL, cluster TEXT NOT NULL, node TEXT NOT NULL,
  severity TEXT NOT NULL, "check" TEXT NOT NULL, reason TEXT NOT NULL, stream TEXT NOT NULL,
  sequence INTEGER NOT NULL, event BLOB NOT NULL);
CREATE TABLE runs(
  last INTEGER NOT NULL, "by" INTEGER NOT NULL, first INTEGER NOT NULL, entries BLOB NOT NULL,
  PRIMARY KEY(last, "by", first)) WITHOUT ROWID;
CREATE TABLE streams(
  source TEXT NOT NULL, stream TEXT NOT NULL, highest INTEGER NOT NULL, seen INTEGER NOT NULL,
  PRIMARY KEY(source, stream)) WITHOUT ROWID;`

const (
	version  = 2
	withRuns = 2 // the version before had indexes of SQLite, and watermarks with each event
	suffix   = ".db"
	columns  = `offset, received, crc, source, id, type, cluster, node, severity, "check", reason, stream, sequence, event`
)

func partitionName(first uint64) string { return fmt.Sprintf("%020d%s", first, suffix) }

// partitionFirst returns the first offset that a file's name says.
func partitionFirst(name string) (uint64, bool) {
	if len(name) != 20+len(suffix) || filepath.Ext(name) != suffix {
		return 0, false
	}
	first, err := strconv.ParseUint(name[:20], 10, 63)
	return first, err == nil
}

// access is what a file is opened for.
type access int

const (
	writing       access = iota
	reading              // statements that write fail
	readingSealed        // nobody writes: no lock is taken and nothing looked for that has changed, which takes longer than a page
)

// open opens the file for readers.
func (p *partition) open() (*sql.DB, error) {
	if p.sealed {
		return open(p.path, readingSealed)
	}
	return open(p.path, reading)
}

// open returns a database of the file.
func open(path string, a access) (*sql.DB, error) {
	q := url.Values{"_pragma": {"busy_timeout(5000)", "synchronous(FULL)", "trusted_schema(OFF)"}}
	if a != writing {
		q["_pragma"] = append(q["_pragma"], "query_only(ON)", "cache_size(-512)")
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
	db.SetMaxIdleConns(2)
	if a == readingSealed {
		db.SetMaxIdleConns(1) // each has a cache, and there are many such files
	}
	db.SetConnMaxIdleTime(time.Minute)
	return db, nil
}

// create makes an empty partition, under its name only when it is complete.
func create(ctx context.Context, dir string, first uint64, day string) (*partition, error) {
	p := &partition{path: filepath.Join(dir, partitionName(first)), first: first, version: version, last: first - 1}
	started := p.path + ".new"
	if _, err := os.Lstat(p.path); !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s: a file is in the way: %w", p.path, err)
	}
	if err := errors.Join(remove(started), remove(started+"-wal"), remove(started+"-shm")); err != nil {
		return nil, err
	}
	db, err := open(started, writing)
	if err != nil {
		return nil, err
	}
	_, err = db.ExecContext(ctx, schema)
	if err == nil {
		_, err = db.ExecContext(ctx, "INSERT INTO meta VALUES(?, ?)", version, day)
	}
	if err = errors.Join(err, db.Close()); err != nil {
		return nil, fmt.Errorf("create %s: %w", p.path, err)
	}
	if err := errors.Join(os.Rename(started, p.path), syncDir(dir)); err != nil {
		return nil, err
	}
	p.db, err = p.open()
	return p, err
}

// load opens a partition that is there and reads what it holds. What is wrong with it is in damaged. Nothing is written to
// a past one.
func load(ctx context.Context, dir string, first uint64, past bool) (*partition, error) {
	p := &partition{path: filepath.Join(dir, partitionName(first)), first: first, last: first - 1}
	p.sealed = past && isSealed(p.path)
	db, err := p.open()
	if err != nil {
		return nil, err
	}
	p.db = db
	err = db.QueryRowContext(ctx, "SELECT version FROM meta").Scan(&p.version)
	if err == nil && (p.version < 1 || p.version > version) {
		err := fmt.Errorf("%s: its format is %d, this program reads 1 to %d", p.path, p.version, version)
		return nil, errors.Join(err, db.Close())
	}
	var last, received sql.NullInt64
	if err == nil {
		err = db.QueryRowContext(ctx, "SELECT offset, received FROM events ORDER BY offset DESC LIMIT 1").
			Scan(&last, &received)
	}
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	if err == nil && p.version >= withRuns {
		err = p.index.load(ctx, db)
	}
	if err != nil {
		if !isDamage(err) {
			return nil, errors.Join(fmt.Errorf("%s: %w", p.path, err), db.Close())
		}
		p.damaged = err
	}
	if last.Valid {
		p.last, p.newest = uint64(last.Int64), time.UnixMilli(received.Int64)
	}
	return p, nil
}

// isSealed reports whether all of a file is in it: its header says that it has no write-ahead log (18 and 19 of
// https://www.sqlite.org/fileformat2.html#the_database_header), and nothing was cut off that would have to be undone.
func isSealed(path string) bool {
	for _, other := range []string{"-wal", "-journal"} {
		if _, err := os.Lstat(path + other); !errors.Is(err, os.ErrNotExist) {
			return false
		}
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

// close ends all use of the partition. Readers end first.
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
	p.db, p.asked = nil, nil
	return err
}

// seal removes the write-ahead log of a partition that nothing is written to any more, and makes its index one run.
func (p *partition) seal(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sealed || p.db == nil {
		return nil
	}
	if err := p.closeLocked(); err != nil {
		return err
	}
	db, err := open(p.path, writing)
	if err == nil {
		merged := p.merge(ctx, db) // where it fails, each run is looked at by itself for ever
		_, err = db.ExecContext(ctx, "PRAGMA journal_mode=DELETE")
		err = errors.Join(err, db.Close())
		p.sealed = err == nil
		err = errors.Join(merged, err)
	}
	var again error
	p.db, again = p.open()
	return errors.Join(err, again)
}

// drop removes the files of the partition.
func (p *partition) drop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(p.closeLocked(), remove(p.path), remove(p.path+"-wal"), remove(p.path+"-shm"))
}

// size is that of its files in bytes.
func (p *partition) size() (n int64) {
	for _, name := range []string{p.path, p.path + "-wal"} {
		if info, err := os.Stat(name); err == nil {
			n += info.Size()
		}
	}
	return n
}

// scanRow reads the columns of a row. sound is whether its checksum is right.
func scanRow(rows *sql.Rows) (r journal.Record, sound bool, err error) {
	var received, sequence int64
	var crc uint32
	err = rows.Scan(&r.Offset, &received, &crc, &r.Source, &r.ID, &r.Type, &r.Cluster, &r.Node, &r.Severity, &r.Check,
		&r.Reason, &r.Stream, &sequence, &r.JSON)
	r.Received, r.Sequence = time.UnixMilli(received).UTC(), uint64(sequence)
	return r, crc == checksum(r.Offset, r.JSON), err
}

func checksum(offset uint64, event []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum(binary.BigEndian.AppendUint64(nil, offset), table), table, event)
}

// hash is the start of the SHA-256: nobody makes two texts with the same one at will.
func hash(text string) int64 {
	sum := sha256.Sum256([]byte(text))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

// isDamage reports whether an error says that the file itself is damaged.
func isDamage(err error) bool {
	code := sqliteCode(err)
	return code == codes.SQLITE_CORRUPT || code == codes.SQLITE_NOTADB || code == codes.SQLITE_ERROR
}

func isFull(err error) bool { return sqliteCode(err) == codes.SQLITE_FULL }

// sqliteCode is the primary result code of SQLite, 0 for other errors.
func sqliteCode(err error) int {
	if e, ok := errors.AsType[*driver.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
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
