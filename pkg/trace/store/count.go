package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
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
	nodes, err := json.Marshal(f.Nodes)
	if err != nil {
		return nil, err
	}
	oldest := now.Add(-window).UTC().Format(dayFormat)
	for _, db := range s.since(oldest) {
		rows, err := db.QueryContext(ctx, `SELECT act, outcome, class, reason, count(*) FROM acts WHERE at > ? AND at <= ?
 AND (? = '' OR namespace = ?) AND (? = 0 OR node IN (SELECT value FROM json_each(?))) GROUP BY act, outcome, class, reason`,
			now.Add(-window).UnixMilli(), now.UnixMilli(), f.Namespace, f.Namespace, len(f.Nodes), string(nodes))
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

// since returns the files of a day and of later ones.
func (s *Store) since(oldest string) (dbs []*sql.DB) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for day, db := range s.days {
		if day >= oldest {
			dbs = append(dbs, db)
		}
	}
	return dbs
}
