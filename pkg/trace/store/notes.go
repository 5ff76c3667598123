package store

import (
	"context"
	"database/sql"
	"errors"
)

// Leads reports whether this process writes. Only the goroutine that calls Lead may ask.
func (s *Store) Leads() bool { return !s.pg || s.lead != nil }

// Note reads a value that SetNote stored under a name; without one, it leaves into unchanged.
func (s *Store) Note(ctx context.Context, name string, into any) error {
	err := s.open.QueryRowContext(ctx, `SELECT value FROM meta WHERE name = $1`, name).Scan(document{into})
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	return err
}

// SetNote stores a value under a name.
func (s *Store) SetNote(ctx context.Context, name string, value any) error {
	return s.inTransaction(ctx, s.open, func(ctx context.Context, tx *sql.Tx) error {
		return exec(ctx, tx, `INSERT INTO meta VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value`, name, document{value})
	})
}
