package store

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/report"
)

// placedSchema has the requests of the pods that got a node, by hour of their verdict.
const placedSchema = `
CREATE TABLE IF NOT EXISTS placed (hour BIGINT, namespace TEXT, pods BIGINT NOT NULL, cpu BIGINT NOT NULL, bytes BIGINT NOT NULL,
 PRIMARY KEY (hour, namespace)) WITHOUT ROWID;`

func savePlaced(ctx context.Context, tx *sql.Tx, a *follow.Act) error {
	t := &a.Timeline
	if t.Act != record.Creation || t.Node == "" {
		return nil
	}
	return exec(ctx, tx, `INSERT INTO placed VALUES ($1, $2, 1, $3, $4) ON CONFLICT (hour, namespace)
 DO UPDATE SET pods = placed.pods + 1, cpu = placed.cpu + excluded.cpu, bytes = placed.bytes + excluded.bytes`,
		hourOf(a.JudgedAt), t.Namespace, t.CPU, t.Bytes)
}

func hourOf(at time.Time) int64 { return at.Unix() / int64(time.Hour/time.Second) }

// LastCapacity returns how many creations of a window that ends now were missed because no node had room, and which
// namespaces took the room: the pods that got a node in the hours of these misses and in the hour before each, the
// largest requests of CPU first.
func (s *Store) LastCapacity(ctx context.Context, now time.Time, window time.Duration, namespace string) (misses int, took []report.Placed, err error) {
	begin := now.Add(-window)
	dbs := s.since(begin.Add(-time.Hour))
	full := map[int64]bool{} // hours
	where, args := Filter{Reason: "CapacityExhausted"}.judged(begin, now)
	if err := each(ctx, dbs, `SELECT at / 3600000, count(*) FROM acts`+where+` AND act = 'creation' AND outcome = 'missed' GROUP BY at / 3600000`,
		args, func(rows *sql.Rows) error {
			var hour int64
			var n int
			err := rows.Scan(&hour, &n)
			full[hour], full[hour-1] = true, true
			misses += n
			return err
		}); err != nil {
		return 0, nil, err
	}
	by := map[string]report.Placed{}
	where, args = Filter{Namespace: namespace}.narrow(` WHERE hour >= $1 AND hour <= $2`, hourOf(begin)-1, hourOf(now))
	if err := each(ctx, dbs, `SELECT hour, namespace, pods, cpu, bytes FROM placed`+where, args, func(rows *sql.Rows) error {
		var hour int64
		var p report.Placed
		err := rows.Scan(&hour, &p.Namespace, &p.Pods, &p.CPU, &p.Bytes)
		if sum := by[p.Namespace]; full[hour] {
			by[p.Namespace] = report.Placed{Namespace: p.Namespace, Pods: sum.Pods + p.Pods, CPU: sum.CPU + p.CPU, Bytes: sum.Bytes + p.Bytes}
		}
		return err
	}); err != nil {
		return 0, nil, err
	}
	for _, p := range by {
		took = append(took, p)
	}
	slices.SortFunc(took, func(a, b report.Placed) int {
		return cmp.Or(cmp.Compare(b.CPU, a.CPU), cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Namespace, b.Namespace))
	})
	return misses, took, nil
}
