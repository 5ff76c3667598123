package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/probe"
)

// Probed is the number of probes of a component's instance.
type Probed struct {
	Component string
	Instance  string
	Good, Bad int
	Blind     int
}

// SaveProbes adds the counts of minutes.
func (s *Store) SaveProbes(ctx context.Context, counts []probe.Count) (err error) {
	for _, c := range counts {
		db, err := s.day(ctx, c.Minute.UTC().Format(dayFormat))
		if err != nil {
			return err
		}
		// A minute is saved once; after a restart within a minute, its two parts add up.
		if _, err := db.ExecContext(ctx, `INSERT INTO probes VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (minute, component, instance)
 DO UPDATE SET good = probes.good + excluded.good, bad = probes.bad + excluded.bad, blind = probes.blind + excluded.blind`,
			minuteOf(c.Minute), c.Component, c.Instance, c.Good, c.Bad, c.Blind); err != nil {
			return fmt.Errorf("store probes: %w", err)
		}
	}
	return nil
}

func minuteOf(at time.Time) int64 { return at.Unix() / 60 }

// Probes adds up the probes of a window that ends now.
func (s *Store) Probes(ctx context.Context, now time.Time, window time.Duration) (sums []Probed, err error) {
	begin := now.Add(-window)
	err = each(ctx, s.since(begin), `SELECT component, instance, sum(good), sum(bad), sum(blind) FROM probes WHERE minute >= $1
 AND minute <= $2 GROUP BY component, instance`, []any{minuteOf(begin), minuteOf(now)}, func(rows *sql.Rows) error {
		var p Probed
		err := rows.Scan(&p.Component, &p.Instance, &p.Good, &p.Bad, &p.Blind)
		same := func(q Probed) bool { return q.Component == p.Component && q.Instance == p.Instance }
		if at := slices.IndexFunc(sums, same); at >= 0 { // of another day
			sums[at].Good, sums[at].Bad, sums[at].Blind = sums[at].Good+p.Good, sums[at].Bad+p.Bad, sums[at].Blind+p.Blind
			return err
		}
		sums = append(sums, p)
		return err
	})
	return sums, err
}
