package sqlite

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
)

// A file of a past day has a Bloom filter of its identities, kept in memory. Without it, each event of a sender without
// sequences would be looked up in each file: the more days are kept, the slower.

const (
	filterBits   = 16 // per event: of 2,000 new identities, one is looked up needlessly
	filterHashes = 8
)

// identity is the SHA-256 of an event's source and ID: no sender can choose a colliding one.
type identity [sha256.Size]byte

func identityOf(source, id string) identity { return sha256.Sum256([]byte(source + "\x00" + id)) }

// filter has the identities of a file, with few false positives. Nil may have any.
type filter []byte

func newFilter(events int64) filter { return make(filter, max(64, events*filterBits/8)) }

// bits calls use for each bit of an identity until it returns false.
func (f filter) bits(i identity, use func(at uint64, bit byte) bool) bool {
	a, b := binary.BigEndian.Uint64(i[:]), binary.BigEndian.Uint64(i[8:])|1
	for n := range uint64(filterHashes) {
		at := (a + n*b) % (uint64(len(f)) * 8)
		if !use(at/8, 1<<(at%8)) {
			return false
		}
	}
	return true
}

func (f filter) add(i identity) {
	f.bits(i, func(at uint64, bit byte) bool { f[at] |= bit; return true })
}

// mayHave reports whether an identity may be in the file.
func (f filter) mayHave(i identity) bool {
	return len(f) == 0 || f.bits(i, func(at uint64, bit byte) bool { return f[at]&bit != 0 })
}

const filterSchema = `CREATE TABLE filter(crc INTEGER NOT NULL, bits BLOB NOT NULL);`

// loadFilter reads the filter of a file. Nil: it is missing or damaged.
func loadFilter(ctx context.Context, db *sql.DB) (f filter, err error) {
	var crc uint32
	err = db.QueryRowContext(ctx, "SELECT crc, bits FROM filter").Scan(&crc, &f)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err == nil && crc != checksum(0, f) {
		err = errors.New("wrong checksum")
	}
	if err != nil {
		return nil, fmt.Errorf("filter of identities: %w", err)
	}
	return f, nil
}

// makeFilter computes the filter of a file and stores it there.
func makeFilter(ctx context.Context, db *sql.DB) (filter, error) {
	var events int64
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM events").Scan(&events); err != nil {
		return nil, err
	}
	f := newFilter(events)
	err := each(ctx, db, func(rows *sql.Rows) error {
		var source, id string
		err := rows.Scan(&source, &id)
		f.add(identityOf(source, id))
		return err
	}, "SELECT source, id FROM events INDEXED BY events_identity")
	if err != nil {
		return nil, err
	}
	_, err = db.ExecContext(ctx, "DELETE FROM filter; INSERT INTO filter VALUES(?, ?)", checksum(0, f), []byte(f))
	return f, err
}

// each calls use for each row of a query's result.
func each(ctx context.Context, db *sql.DB, use func(*sql.Rows) error, query string, args ...any) error {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := use(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
