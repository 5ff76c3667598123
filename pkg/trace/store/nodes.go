package store

import (
	"context"
	"database/sql"
	"slices"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/nodefault"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
)

// CountNodes adds the acts of a window that ends now to the named nodes.
func (s *Store) CountNodes(ctx context.Context, now time.Time, window time.Duration, nodes map[string]nodefault.Day) error {
	where, args := Filter{}.judged(now.Add(-window), now)
	query := `SELECT node, outcome, count(*) FROM acts` + where + ` AND (outcome = 'delivered' OR outcome = 'missed' AND class <> 'user') GROUP BY node, outcome`
	return each(ctx, s.since(now.Add(-window)), query, args, func(rows *sql.Rows) error {
		var node string
		var outcome verdict.Outcome
		var n int
		err := rows.Scan(&node, &outcome, &n)
		day, known := nodes[node]
		switch {
		case !known:
			return err
		case outcome == verdict.Delivered:
			day.Delivered += n
		default:
			day.Missed += n
		}
		nodes[node] = day
		return err
	})
}

// MissesOfOwner returns the system's misses on nodes in a window that ends now, of the pods of a controller: its UID must have
// letters, digits and dashes only. The newest come first, at most MaxMisses.
func (s *Store) MissesOfOwner(ctx context.Context, now time.Time, window time.Duration, uid string) (found []Row, err error) {
	where, args := Filter{}.judged(now.Add(-window), now)
	where += ` AND outcome = 'missed' AND class <> 'user' AND node <> '' AND ` + evidence + ` LIKE $3 ORDER BY at DESC LIMIT ` + strconv.Itoa(MaxMisses)
	err = rows(ctx, s.since(now.Add(-window)), noEvidence, where, append(args, `%"ownerUID":"`+uid+`"%`), func(r Row) { found = append(found, r) })
	slices.SortStableFunc(found, func(a, b Row) int { return b.At.Compare(a.At) })
	return found[:min(len(found), MaxMisses)], err
}
