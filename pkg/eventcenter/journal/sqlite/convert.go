package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// conversions returns SQL that converts an older format. Format 1 had an index of hashes; format 2 kept its indexes in
// a table of blobs, with watermarks as old as the last of them. Such a file may contain an identity twice, so its index
// is not unique; no events are added to it any more.
func conversions(version int) string {
	const indexed = `CREATE INDEX events_identity ON events(source, id);` + filterSchema
	switch version {
	case 1:
		return `DROP INDEX events_dedup; ALTER TABLE events DROP COLUMN dedup;` + indexed
	case 2:
		return `INSERT INTO streams SELECT source, stream, max(sequence), max(received) FROM events
			WHERE stream <> '' AND offset > (SELECT coalesce(max(last), 0) FROM runs) GROUP BY source, stream
			ON CONFLICT DO UPDATE SET highest = max(highest, excluded.highest), seen = max(seen, excluded.seen);
			DROP TABLE runs; CREATE INDEX events_node ON events(node);` + indexed
	}
	return ""
}

// convert converts a file to the present format, completely or not at all.
func convert(ctx context.Context, path string, from int) error {
	db, err := open(path, writing)
	if err != nil {
		return err
	}
	err = inTransaction(ctx, db, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, conversions(from)+fmt.Sprintf("UPDATE meta SET version = %d", version))
		return err
	})
	return errors.Join(err, db.Close())
}

func inTransaction(ctx context.Context, db *sql.DB, do func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // no effect after the commit
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit()
}
