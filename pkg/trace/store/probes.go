package store

import (
	"context"
	"errors"
	"fmt"
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
		if _, err := db.ExecContext(ctx, s.rebind(`INSERT INTO probes VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (minute, component, instance)
 DO UPDATE SET good = probes.good + excluded.good, bad = probes.bad + excluded.bad, blind = probes.blind + excluded.blind`),
			c.Minute.Unix()/60, c.Component, c.Instance, c.Good, c.Bad, c.Blind); err != nil {
			return fmt.Errorf("store probes: %w", err)
		}
	}
	return nil
}

// Probes adds up the probes of a window that ends now.
func (s *Store) Probes(ctx context.Context, now time.Time, window time.Duration) (sums []Probed, err error) {
	byInstance := map[[2]string]int{}
	for _, db := range s.since(now.Add(-window).UTC().Format(dayFormat)) {
		rows, err := db.QueryContext(ctx, s.rebind(`SELECT component, instance, sum(good), sum(bad), sum(blind) FROM probes WHERE minute >= ?
 AND minute <= ? GROUP BY component, instance`), now.Add(-window).Unix()/60, now.Unix()/60)
		if err != nil {
			return nil, err
		}
		for rows.Next() {
			var p Probed
			if err := rows.Scan(&p.Component, &p.Instance, &p.Good, &p.Bad, &p.Blind); err != nil {
				return nil, errors.Join(err, rows.Close())
			}
			key := [2]string{p.Component, p.Instance}
			at, known := byInstance[key]
			if !known {
				byInstance[key] = len(sums)
				sums = append(sums, p)
				continue
			}
			sums[at].Good, sums[at].Bad, sums[at].Blind = sums[at].Good+p.Good, sums[at].Bad+p.Bad, sums[at].Blind+p.Blind
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return nil, err
		}
	}
	return sums, nil
}
