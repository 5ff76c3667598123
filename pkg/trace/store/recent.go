package store

import (
	"context"
	"errors"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/nodefault"
)

// maxRecent limits the compared acts: half an hour of 100 creations and deletions a second.
const maxRecent = 200_000

// Recent returns the newest delivered or missed creations and deletions on nodes, of a window that ends now.
func (s *Store) Recent(ctx context.Context, now time.Time, window time.Duration) (acts []nodefault.Act, err error) {
	for _, db := range s.since(now.Add(-window).UTC().Format(dayFormat)) {
		rows, err := db.QueryContext(ctx, s.rebind(`SELECT act, node, namespace, owner, outcome, class, reason, at FROM acts WHERE at > ? AND at <= ?
 AND node <> '' AND act IN ('creation', 'deletion') AND outcome IN ('delivered', 'missed') ORDER BY at DESC LIMIT ?`),
			now.Add(-window).UnixMilli(), now.UnixMilli(), maxRecent)
		if err != nil {
			return nil, err
		}
		for rows.Next() {
			var a nodefault.Act
			var at int64
			if err := rows.Scan(&a.Act, &a.Node, &a.Namespace, &a.Owner, &a.Outcome, &a.Class, &a.Reason, &at); err != nil {
				return nil, errors.Join(err, rows.Close())
			}
			a.At = time.UnixMilli(at)
			acts = append(acts, a)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return nil, err
		}
	}
	return acts, nil
}
