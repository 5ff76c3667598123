// Package store keeps verdicts, with evidence only for misses, and the open acts, so that no verdict is lost or given
// twice across a restart. By default it uses SQLite: one file per day, which is dropped as a whole. Several replicas, or
// people who want to query it, use PostgreSQL.
package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/report"
	"github.com/nodeagent/nodeagent/pkg/web/control/sqlite"
)

const (
	dayFormat = time.DateOnly

	openSchema = `CREATE TABLE IF NOT EXISTS open (key TEXT PRIMARY KEY, act TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;`

	daySchema = `CREATE TABLE IF NOT EXISTS acts (key TEXT PRIMARY KEY, uid TEXT NOT NULL, act TEXT NOT NULL, namespace TEXT NOT NULL,
 name TEXT NOT NULL, node TEXT NOT NULL, owner TEXT NOT NULL, outcome TEXT NOT NULL, why TEXT NOT NULL, class TEXT NOT NULL,
 first TEXT NOT NULL, reason TEXT NOT NULL, at BIGINT NOT NULL, judged BIGINT NOT NULL, "user" BIGINT NOT NULL, stages TEXT NOT NULL,
 build BIGINT NOT NULL DEFAULT 0) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS acts_at ON acts (at);
CREATE INDEX IF NOT EXISTS acts_missed ON acts (at) WHERE outcome = 'missed';
CREATE INDEX IF NOT EXISTS acts_name ON acts (namespace, name);
CREATE TABLE IF NOT EXISTS evidence (key TEXT PRIMARY KEY, act TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS probes (minute INTEGER, component TEXT, instance TEXT, good INTEGER NOT NULL, bad INTEGER NOT NULL,
 blind INTEGER NOT NULL, PRIMARY KEY (minute, component, instance)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS placed (hour BIGINT, namespace TEXT, pods BIGINT NOT NULL, cpu BIGINT NOT NULL, bytes BIGINT NOT NULL,
 PRIMARY KEY (hour, namespace)) WITHOUT ROWID;` // the requests of the pods that got a node, by hour of their verdict

	// Hours are the begin of the hour, in milliseconds as the time of an act.
	hoursSchema = `CREATE TABLE IF NOT EXISTS hours (hour BIGINT, namespace TEXT, act TEXT, outcome TEXT, class TEXT, reason TEXT, n INTEGER NOT NULL,
 PRIMARY KEY (hour, namespace, act, outcome, class, reason)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS stages (hour BIGINT, act TEXT, stage TEXT, build BIGINT, cached BOOLEAN, histogram TEXT NOT NULL,
 PRIMARY KEY (hour, act, stage, build, cached)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS builds (id BIGINT PRIMARY KEY, build TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS weeks (week TEXT PRIMARY KEY, report TEXT NOT NULL) WITHOUT ROWID;`

	// A table of an earlier release has no builds.
	addBuild = `ALTER TABLE acts ADD COLUMN build BIGINT NOT NULL DEFAULT 0`

	setMeta  = `INSERT INTO meta VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value`
	setFirst = `INSERT INTO meta VALUES ('` + First + `', $1) ON CONFLICT DO NOTHING`
)

// The names of notes with a time.
const (
	First  = "first"   // the first run
	Alive  = "alive"   // until when the writing replica has stored everything
	summed = "counted" // up to which hour the acts are added up
)

// Store is an open store. Only one process may have SQLite's files open; of several with PostgreSQL, one writes.
type Store struct {
	dir  string
	keep int // days
	lock *os.File
	open *sql.DB
	pg   bool // everything is in open
	// hours has the sums of the hours: open for PostgreSQL.
	hours *sql.DB
	lead  *sql.Conn // PostgreSQL's session with the writer's lock; used by the writer's goroutine only
	at    time.Time // when it was opened

	mu   sync.Mutex // guards the fields below
	days map[string]*sql.DB
}

// Open opens the store in a directory, or creates it.
func Open(ctx context.Context, dir string, keepDays int) (*Store, error) {
	s := &Store{dir: dir, keep: keepDays, at: time.Now(), days: map[string]*sql.DB{}}
	if err := s.openFiles(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("store %s: %w", dir, err), s.Close())
	}
	return s, nil
}

func (s *Store) openFiles(ctx context.Context) (err error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	if s.lock, err = os.OpenFile(filepath.Join(s.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return err
	}
	if err := syscall.Flock(int(s.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("in use by another process: %w", err)
	}
	if s.open, err = database(ctx, filepath.Join(s.dir, "open.db"), openSchema); err != nil {
		return err
	}
	if s.hours, err = database(ctx, filepath.Join(s.dir, "hours.db"), hoursSchema); err != nil {
		return err
	}
	if err := s.write(ctx, s.open, func(run statement) { run(setFirst, document{time.Now().UTC()}) }); err != nil {
		return err
	}
	names, err := fs.Glob(os.DirFS(s.dir), "????-??-??.db")
	for _, name := range names {
		if _, err := s.day(ctx, strings.TrimSuffix(name, ".db")); err != nil {
			return err
		}
	}
	return err
}

func database(ctx context.Context, name, schema string) (*sql.DB, error) {
	db, err := sqlite.Database(name, 4, "journal_mode(WAL)", "synchronous(NORMAL)", "busy_timeout(5000)")
	if err != nil {
		return nil, err
	}
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", filepath.Base(name), err), db.Close())
	}
	return db, os.Chmod(name, 0o600)
}

func (s *Store) day(ctx context.Context, day string) (*sql.DB, error) {
	if s.pg {
		return s.open, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if db := s.days[day]; db != nil {
		return db, nil
	}
	if _, err := time.Parse(dayFormat, day); err != nil {
		return nil, err
	}
	db, err := database(ctx, filepath.Join(s.dir, day+".db"), daySchema)
	if err != nil {
		return nil, err
	}
	s.days[day] = db
	var known int
	err = db.QueryRowContext(ctx, `SELECT count(*) FROM pragma_table_info('acts') WHERE name = 'build'`).Scan(&known)
	if err == nil && known == 0 {
		_, err = db.ExecContext(ctx, addBuild)
	}
	return db, err
}

// Close closes all files.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	if s.lead != nil {
		discard(s.lead)
	}
	for _, db := range s.days {
		errs = append(errs, db.Close())
	}
	if s.open != nil {
		errs = append(errs, s.open.Close())
	}
	if s.hours != nil && !s.pg {
		errs = append(errs, s.hours.Close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// overlap is how long before the end of the last run an unseen act may have begun: clocks differ.
const overlap = 10 * time.Minute

// Load returns the open acts, and the time from which on the last run may have missed acts; zero if there was none. It
// is never before the first run. Load skips acts whose verdict was stored before the last run could remove them from
// the open ones.
func (s *Store) Load(ctx context.Context) (acts []follow.Act, since time.Time, err error) {
	var first, alive time.Time
	if err := errors.Join(s.Note(ctx, First, &first), s.Note(ctx, Alive, &alive)); err != nil {
		return nil, since, err
	}
	switch {
	case !alive.IsZero():
		if since = alive.Add(-overlap); since.Before(first) {
			since = first
		}
	case first.Before(s.at): // the first run ended before its first save
		since = first.Truncate(time.Second) // the resolution of Kubernetes' times
	}
	err = each(ctx, []*sql.DB{s.open}, `SELECT act FROM open`, nil, func(o struct{ Act follow.Act }) {
		if !o.Act.JudgedAt.IsZero() || !s.Judged(ctx, o.Act.Key()) {
			acts = append(acts, o.Act)
		}
	})
	return acts, since, err
}

// one reads a value of at most one row; if there is none, it stays unchanged.
func one(ctx context.Context, db *sql.DB, query string, arg, into any) error {
	if err := db.QueryRowContext(ctx, query, arg).Scan(into); !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	return nil
}

// Note reads a value that SetNote stored under a name; without one, it leaves into unchanged.
func (s *Store) Note(ctx context.Context, name string, into any) error {
	return one(ctx, s.open, `SELECT value FROM meta WHERE name = $1`, name, document{into})
}

// SetNote stores a value under a name.
func (s *Store) SetNote(ctx context.Context, name string, value any) error {
	return s.write(ctx, s.open, func(run statement) { run(setMeta, name, document{value}) })
}

// document is a value stored as JSON, a time without quotes. An empty text leaves it unchanged.
type document struct{ of any }

// Value encodes the document.
func (d document) Value() (driver.Value, error) {
	if at, isTime := d.of.(time.Time); isTime {
		return at.UTC().Format(time.RFC3339Nano), nil
	}
	text, err := json.Marshal(d.of)
	return string(text), err
}

// Scan decodes the document.
func (d document) Scan(stored any) error {
	text, ok := stored.(string)
	if !ok {
		return fmt.Errorf("a stored document is %T, not a text", stored)
	}
	switch at, isTime := d.of.(*time.Time); {
	case text == "":
		return nil
	case isTime && text[0] != '"':
		return at.UnmarshalText([]byte(text))
	}
	return json.Unmarshal([]byte(text), d.of)
}

// Judged reports whether an act has a verdict in any file.
func (s *Store) Judged(ctx context.Context, key follow.Key) bool {
	return slices.ContainsFunc(s.all(), func(db *sql.DB) bool {
		return db.QueryRowContext(ctx, `SELECT 1 FROM acts WHERE key = $1`, key.String()).Scan(new(int)) == nil
	})
}

// all returns the files of all days.
func (s *Store) all() []*sql.DB { return s.since(time.Time{}) }

// since returns the files of a time's day and of later ones.
func (s *Store) since(at time.Time) (dbs []*sql.DB) {
	if s.pg {
		return []*sql.DB{s.open}
	}
	oldest := at.UTC().Format(dayFormat)
	s.mu.Lock()
	defer s.mu.Unlock()
	for day, db := range s.days {
		if day >= oldest {
			dbs = append(dbs, db)
		}
	}
	return dbs
}

// Expire drops old days. A standby replica drops none.
func (s *Store) Expire(ctx context.Context, now time.Time) error {
	if !s.Leads() {
		return nil
	}
	sums, acts := now.AddDate(0, -monthsKept, 0), now.AddDate(0, 0, -s.keep)
	if err := s.write(ctx, s.hours, func(run statement) {
		run(`DELETE FROM hours WHERE hour < $1`, sums.UnixMilli())
		run(`DELETE FROM stages WHERE hour < $1`, sums.UnixMilli())
		run(`DELETE FROM weeks WHERE week < $1`, report.WeekOf(sums))
		if s.pg {
			run(`DELETE FROM evidence WHERE key IN (SELECT key FROM acts WHERE at < $1)`, acts.UnixMilli())
			run(`DELETE FROM acts WHERE at < $1`, acts.UnixMilli())
			run(`DELETE FROM placed WHERE hour < $1`, hourOf(acts))
			run(`DELETE FROM probes WHERE minute < $1`, minuteOf(acts))
		}
	}); err != nil || s.pg {
		return err
	}
	oldest := acts.UTC().Format(dayFormat)
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for day, db := range s.days {
		if day >= oldest {
			continue
		}
		errs = append(errs, db.Close())
		delete(s.days, day)
		for _, end := range []string{".db", ".db-wal", ".db-shm"} {
			if err := os.Remove(filepath.Join(s.dir, day+end)); err != nil && !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
