package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

const (
	connectLimit = 5 * time.Second
	// The keys of PostgreSQL's advisory locks: of the replica that writes, and of the creation of the tables.
	writerLock, schemaLock = 0x7472616365, 0x7472616366
)

// schemaMade is the name of the note with the hash of the statements that have created the tables.
const schemaMade = "schema"

var errStandby = errors.New("another replica writes")

// IsPostgres reports whether a store is named by a URL of PostgreSQL.
func IsPostgres(where string) bool {
	return strings.HasPrefix(where, "postgres://") || strings.HasPrefix(where, "postgresql://")
}

// OpenPostgres opens a store in a database, and creates its tables. Errors do not contain the password.
func OpenPostgres(ctx context.Context, where string, keepDays int) (*Store, error) {
	config, err := pgx.ParseConfig(where)
	if err != nil {
		return nil, err
	}
	config.ConnectTimeout = connectLimit
	for name, value := range map[string]string{"application_name": "tracecenter", // a writer that vanishes loses its lock in 20 s
		"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "3", "tcp_keepalives_count": "3"} {
		config.RuntimeParams[name] = value
	}
	s := &Store{keep: keepDays, pg: true, at: time.Now(), open: stdlib.OpenDB(*config), days: map[string]*sql.DB{}}
	s.open.SetMaxOpenConns(4)
	s.hours = s.open
	if err := s.createTables(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("store in PostgreSQL: %w", err), s.Close())
	}
	return s, nil
}

// createTables creates the tables, or adds what a new release needs. If the tables are right, it takes no lock: a
// replica that starts must neither wait for the writer nor hold it up. ALTER TABLE comes first, since it needs the
// strongest lock: a transaction that takes a weaker one before can end in a deadlock with the writer's.
func (s *Store) createTables(ctx context.Context) error {
	tables := strings.ReplaceAll(openSchema+daySchema+hoursSchema, " WITHOUT ROWID", "")
	alter := strings.NewReplacer("TABLE", "TABLE IF EXISTS", "COLUMN", "COLUMN IF NOT EXISTS").Replace(addBuild)
	made, want := "", fmt.Sprintf("%x", sha256.Sum256([]byte(alter+tables)))
	err := s.open.QueryRowContext(ctx, `SELECT value FROM meta WHERE name = $1`, schemaMade).Scan(&made)
	if err == nil && made == want {
		return nil
	}
	return transact(ctx, s.open.BeginTx, func(run statement) {
		run(`SELECT pg_advisory_xact_lock($1)`, schemaLock)
		run(alter)
		run(tables)
		run(setFirst, document{time.Now().UTC()})
		run(setMeta, schemaMade, want)
	})
}

// Leads reports whether this process writes. Only the goroutine that calls Lead may ask.
func (s *Store) Leads() bool { return !s.pg || s.lead != nil }

// Lead reports whether this process is the one that writes, and whether it has just become that. With PostgreSQL, it is
// the one whose session has the lock: the server releases it when the session ends.
func (s *Store) Lead(ctx context.Context) (leads, fresh bool, err error) {
	if !s.pg {
		return true, false, nil
	}
	if s.lead != nil {
		if s.lead.PingContext(ctx) == nil {
			return true, false, nil
		}
		discard(s.lead) // the session has ended
		s.lead = nil
	}
	conn, err := s.open.Conn(ctx)
	if err != nil {
		return false, false, err
	}
	if err := conn.QueryRowContext(ctx, `SELECT pg_try_advisory_lock($1)`, writerLock).Scan(&leads); err != nil {
		discard(conn)
		return false, false, err
	}
	if !leads {
		return false, false, conn.Close()
	}
	s.lead = conn
	return true, true, nil
}

// discard closes a session instead of returning it to the pool: it may still have the lock.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = conn.Close()
}
