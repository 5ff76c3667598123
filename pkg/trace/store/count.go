package store

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/sli"
)

// Filter selects verdicts.
type Filter struct {
	Namespace string   // empty: all
	Nodes     []string // none: all
	Reason    string   // of misses; empty: all
}

// Count counts the verdicts of a window that ends now.
func (s *Store) Count(ctx context.Context, now time.Time, window time.Duration, f Filter) (counts []sli.Count, err error) {
	query, args := `SELECT act, outcome, class, reason, count(*) FROM acts WHERE at > ? AND at <= ?`, []any{now.Add(-window).UnixMilli(), now.UnixMilli()}
	query, args = f.narrow(query, args)
	query = s.rebind(query + ` GROUP BY act, outcome, class, reason`)
	oldest := now.Add(-window).UTC().Format(dayFormat)
	for _, db := range s.since(oldest) {
		rows, err := db.QueryContext(ctx, query, args...)
		if err != nil {
			return nil, err
		}
		for rows.Next() {
			var c sli.Count
			if err := rows.Scan(&c.Act, &c.Outcome, &c.Class, &c.Reason, &c.N); err != nil {
				return nil, errors.Join(err, rows.Close())
			}
			counts = append(counts, c)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return nil, err
		}
	}
	return counts, nil
}

// narrow adds the conditions of a filter to a query that ends with a condition.
func (f Filter) narrow(query string, args []any) (string, []any) {
	if f.Namespace != "" {
		query, args = query+` AND namespace = ?`, append(args, f.Namespace)
	}
	if f.Reason != "" {
		query, args = query+` AND reason = ?`, append(args, f.Reason)
	}
	if len(f.Nodes) > 0 {
		query += ` AND node IN (?` + strings.Repeat(`,?`, len(f.Nodes)-1) + `)`
		for _, node := range f.Nodes {
			args = append(args, node)
		}
	}
	return query, args
}

// since returns the files of a day and of later ones.
func (s *Store) since(oldest string) (dbs []*sql.DB) {
	if s.pg {
		return []*sql.DB{s.open}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for day, db := range s.days {
		if day >= oldest {
			dbs = append(dbs, db)
		}
	}
	return dbs
}
