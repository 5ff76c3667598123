// Package sqlite is the control store of a program without replicas: one SQLite file.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"

	_ "modernc.org/sqlite" // the driver

	"github.com/nodeagent/nodeagent/pkg/web/control"
)

// schema is the file's schema. The highest revision outlives the records, so that none is reused.
const schema = `
CREATE TABLE IF NOT EXISTS meta(version INTEGER NOT NULL, revision INTEGER NOT NULL);
INSERT INTO meta SELECT 1, 0 WHERE NOT EXISTS (SELECT 1 FROM meta);
CREATE TABLE IF NOT EXISTS records(
  bucket TEXT NOT NULL, key TEXT NOT NULL, revision INTEGER NOT NULL, value BLOB NOT NULL,
  PRIMARY KEY(bucket, key)) WITHOUT ROWID;`

const version = 1

// ErrFormat is the error of Open for an intact file from another version of this program.
var ErrFormat = errors.New("its format is")

// Store is an open file.
type Store struct {
	db *sql.DB
}

var _ control.Store = (*Store)(nil)

// Open opens a file, or creates it. Writes are on disk before a call returns (synchronous=FULL).
func Open(ctx context.Context, file string) (*Store, error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600) // otherwise SQLite makes it readable for others
	if err != nil {
		return nil, err
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	// One connection: writes are few, and serialized anyway.
	db, err := Database(file, 1, "journal_mode(WAL)", "synchronous(FULL)", "busy_timeout(5000)", "trusted_schema(OFF)")
	if err != nil {
		return nil, err
	}
	if err := prepare(ctx, db); err != nil {
		return nil, errors.Join(fmt.Errorf("control store %s: %w", file, err), db.Close())
	}
	return &Store{db}, nil
}

// Database returns the database in a file, with so many connections at most. It opens none yet.
func Database(file string, connections int, pragmas ...string) (*sql.DB, error) {
	u := url.URL{Scheme: "file", OmitHost: true, Path: file,
		RawQuery: url.Values{"_pragma": pragmas, "_txlock": {"immediate"}}.Encode()}
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", file, err)
	}
	db.SetMaxOpenConns(connections)
	return db, nil
}

func prepare(ctx context.Context, db *sql.DB) error {
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return err
	}
	var found int
	if err := db.QueryRowContext(ctx, "SELECT version FROM meta").Scan(&found); err != nil {
		return err
	}
	if found != version {
		return fmt.Errorf("%w %d, this program knows %d", ErrFormat, found, version)
	}
	return nil
}

// Get implements control.Store.
func (s *Store) Get(ctx context.Context, bucket, key string) (control.Record, error) {
	r := control.Record{Key: key}
	if err := control.Problem(bucket, key, nil); err != nil {
		return r, err
	}
	err := s.db.QueryRowContext(ctx, "SELECT value, revision FROM records WHERE bucket = ? AND key = ?", bucket,
		key).Scan(&r.Value, &r.Revision)
	if errors.Is(err, sql.ErrNoRows) {
		err = control.ErrNotFound
	}
	if err != nil {
		return r, fmt.Errorf("%s/%s: %w", bucket, key, err)
	}
	return r, nil
}

// Put implements control.Store.
func (s *Store) Put(ctx context.Context, bucket, key string, value []byte, revision uint64) (next uint64, err error) {
	if err := control.Problem(bucket, key, value); err != nil {
		return 0, err
	}
	if value == nil {
		value = []byte{}
	}
	err = s.change(ctx, bucket, key, func(tx *sql.Tx, current uint64) error {
		if current != revision {
			return control.ErrConflict
		}
		err := tx.QueryRowContext(ctx, "UPDATE meta SET revision = revision + 1 RETURNING revision").Scan(&next)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "INSERT OR REPLACE INTO records VALUES(?, ?, ?, ?)", bucket, key, next, value)
		return err
	})
	return next, err
}

// Delete implements control.Store.
func (s *Store) Delete(ctx context.Context, bucket, key string, revision uint64) error {
	if err := control.Problem(bucket, key, nil); err != nil {
		return err
	}
	return s.change(ctx, bucket, key, func(tx *sql.Tx, current uint64) error {
		switch current {
		case 0:
			return control.ErrNotFound
		case revision:
			_, err := tx.ExecContext(ctx, "DELETE FROM records WHERE bucket = ? AND key = ?", bucket, key)
			return err
		}
		return control.ErrConflict
	})
}

// change calls do in a transaction with the current revision of a record; 0 if there is none.
func (s *Store) change(ctx context.Context, bucket, key string, do func(*sql.Tx, uint64) error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s/%s: %w", bucket, key, err)
		}
	}()
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	var current uint64
	err = tx.QueryRowContext(ctx, "SELECT revision FROM records WHERE bucket = ? AND key = ?", bucket, key).Scan(&current)
	if err == nil || errors.Is(err, sql.ErrNoRows) {
		err = do(tx, current)
	}
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// List implements control.Store.
func (s *Store) List(ctx context.Context, bucket, prefix string) (records []control.Record, err error) {
	if err := control.Problem(bucket, "x", nil); err != nil {
		return nil, err
	}
	// the range is in the index; every key is before "\x7f"
	rows, err := s.db.QueryContext(ctx, "SELECT key, value, revision FROM records WHERE bucket = ? AND key >= ? AND key < ? "+
		"ORDER BY key", bucket, prefix, prefix+"\x7f")
	if err != nil {
		return nil, fmt.Errorf("list %s/%s: %w", bucket, prefix, err)
	}
	defer rows.Close()
	for rows.Next() {
		var r control.Record
		if err := rows.Scan(&r.Key, &r.Value, &r.Revision); err != nil {
			return nil, fmt.Errorf("list %s/%s: %w", bucket, prefix, err)
		}
		records = append(records, r)
	}
	return records, rows.Err()
}

// Close implements control.Store.
func (s *Store) Close() error { return s.db.Close() }

// Copy writes the present contents of a file into another, even while a program has it open.
func Copy(ctx context.Context, file, to string) (err error) {
	if _, err := os.Stat(file); err != nil {
		return err
	}
	db, err := Database(file, 1, "busy_timeout(5000)") // query_only would refuse VACUUM INTO
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if _, err := db.ExecContext(ctx, "VACUUM INTO ?", to); err != nil {
		return fmt.Errorf("copy %s: %w", file, err)
	}
	return os.Chmod(to, 0o600)
}
