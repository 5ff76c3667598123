package store

import (
	"context"
	"errors"
	"slices"
	"time"
)

// MaxMisses limits the misses of one answer.
const MaxMisses = 20_000

// Misses returns the misses of a window that ends now, the newest first and at most MaxMisses, without their evidence.
func (s *Store) Misses(ctx context.Context, now time.Time, window time.Duration, f Filter) (found []Row, err error) {
	query, args := f.narrow(`SELECT key, uid, act, namespace, name, node, owner, outcome, why, class, first, reason, at, judged, "user", stages, ''
 FROM acts WHERE at > ? AND at <= ? AND outcome = 'missed'`, []any{now.Add(-window).UnixMilli(), now.UnixMilli()})
	query = s.rebind(query + ` ORDER BY at DESC LIMIT ?`)
	args = append(args, MaxMisses)
	for _, db := range s.since(now.Add(-window).UTC().Format(dayFormat)) {
		rows, err := db.QueryContext(ctx, query, args...)
		if err != nil {
			return nil, err
		}
		for rows.Next() {
			r, err := scan(rows)
			if err != nil {
				return nil, errors.Join(err, rows.Close())
			}
			found = append(found, r)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(found, func(a, b Row) int { return b.At.Compare(a.At) })
	return found[:min(len(found), MaxMisses)], nil
}
