package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/baseline"
	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/report"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
)

const (
	hoursFile   = "hours.db"
	monthsKept  = 13
	settled     = 15 * time.Minute // after its end, an hour's verdicts are stored and the reasons of its misses final
	countedMeta = "counted"

	// Hours are the begin of the hour, in milliseconds as the time of an act.
	hoursSchema = `CREATE TABLE IF NOT EXISTS hours (hour BIGINT, namespace TEXT, act TEXT, outcome TEXT, class TEXT, reason TEXT, n INTEGER NOT NULL,
 PRIMARY KEY (hour, namespace, act, outcome, class, reason)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS stages (hour BIGINT, act TEXT, stage TEXT, build BIGINT, cached BOOLEAN, histogram TEXT NOT NULL,
 PRIMARY KEY (hour, act, stage, build, cached)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS builds (id BIGINT PRIMARY KEY, build TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS weeks (week TEXT PRIMARY KEY, report TEXT NOT NULL) WITHOUT ROWID;`
)

// CountHour adds up the acts of the oldest complete hour without sums, if there is one: the sums are kept longer than
// the acts. A standby replica adds none up.
func (s *Store) CountHour(ctx context.Context, now time.Time, builds map[int64]record.Build) error {
	if s.pg && s.lead == nil {
		return nil
	}
	hour, err := s.counted(ctx, now)
	if err != nil {
		return err
	}
	if kept := s.Kept(now); hour.Before(kept) { // the acts are dropped
		hour = kept
	}
	end := hour.Add(time.Hour)
	if end.Add(settled).After(now) {
		return nil
	}
	if err := s.countHour(ctx, hour, builds); err != nil {
		return err
	}
	return s.inTransaction(ctx, s.open, func(ctx context.Context, tx *sql.Tx) error { return setMeta(ctx, tx, countedMeta, end) })
}

// counted returns the hour up to which the acts are added up.
func (s *Store) counted(ctx context.Context, now time.Time) (time.Time, error) {
	if at, err := s.meta(ctx, countedMeta); err != nil || !at.IsZero() {
		return at, err
	}
	first := now
	err := each(ctx, s.all(), `SELECT min(at) FROM acts`, nil, func(rows *sql.Rows) error {
		var oldest moment
		err := rows.Scan(&oldest)
		if !oldest.IsZero() && oldest.Before(first) {
			first = oldest.Time
		}
		return err
	})
	return first.UTC().Truncate(time.Hour), err
}

// recount has the hours since a late verdict or reason added up again.
func (s *Store) recount(ctx context.Context, b follow.Batch) error {
	counted, err := s.meta(ctx, countedMeta)
	if err != nil || counted.IsZero() {
		return err
	}
	first := counted
	for _, acts := range [][]follow.Act{b.Judged, b.Refined} {
		for i := range acts {
			if at := acts[i].JudgedAt; at.Before(first) {
				first = at.UTC().Truncate(time.Hour)
			}
		}
	}
	if first.Equal(counted) {
		return nil
	}
	return s.inTransaction(ctx, s.open, func(ctx context.Context, tx *sql.Tx) error { return setMeta(ctx, tx, countedMeta, first) })
}

func (s *Store) countHour(ctx context.Context, hour time.Time, builds map[int64]record.Build) error {
	counts, stages := map[report.Act]int{}, report.Stages{}
	if err := s.Acts(ctx, hour, hour.Add(time.Hour), "", func(a report.Act) {
		stages.Add(a)
		counts[report.Act{Namespace: a.Namespace, Act: a.Act, Outcome: a.Outcome, Class: a.Class, Reason: a.Reason}]++
	}); err != nil {
		return err
	}
	at := moment{hour}
	return s.inTransaction(ctx, s.hours, func(ctx context.Context, tx *sql.Tx) error {
		for _, clear := range []string{`DELETE FROM hours WHERE hour = $1`, `DELETE FROM stages WHERE hour = $1`} {
			if err := exec(ctx, tx, clear, at); err != nil {
				return err
			}
		}
		for a, n := range counts {
			if err := exec(ctx, tx, `INSERT INTO hours VALUES ($1, $2, $3, $4, $5, $6, $7)`, at, a.Namespace, a.Act, a.Outcome, a.Class, a.Reason,
				n); err != nil {
				return err
			}
		}
		for k, h := range stages {
			if err := exec(ctx, tx, `INSERT INTO stages VALUES ($1, $2, $3, $4, $5, $6)`, at, k.Act, k.Stage, k.Build, k.Cached,
				document{h}); err != nil {
				return err
			}
		}
		for id, b := range builds {
			if err := exec(ctx, tx, `INSERT INTO builds VALUES ($1, $2) ON CONFLICT DO NOTHING`, id, document{b}); err != nil {
				return err
			}
		}
		return nil
	})
}

// expireHours drops sums that are too old.
func (s *Store) expireHours(ctx context.Context, now time.Time) error {
	oldest := now.AddDate(0, -monthsKept, 0)
	return s.inTransaction(ctx, s.hours, func(ctx context.Context, tx *sql.Tx) error {
		return errors.Join(exec(ctx, tx, `DELETE FROM hours WHERE hour < $1`, moment{oldest}),
			exec(ctx, tx, `DELETE FROM stages WHERE hour < $1`, moment{oldest}),
			exec(ctx, tx, `DELETE FROM weeks WHERE week < $1`, report.WeekOf(oldest)))
	})
}

// Sums counts the verdicts of a time that begins with an hour, from the hours added up and the acts after them.
func (s *Store) Sums(ctx context.Context, from, to time.Time, namespace string) ([]sli.Count, error) {
	counted, err := s.counted(ctx, to)
	if err != nil {
		return nil, err
	}
	if counted.After(to) {
		counted = to
	}
	where, args := Filter{Namespace: namespace}.narrow(` WHERE hour >= $1 AND hour < $2`, moment{from}, moment{counted})
	sums, err := counts(ctx, []*sql.DB{s.hours}, `sum(n) FROM hours`+where, args)
	if err != nil || counted.Equal(to) {
		return sums, err
	}
	if counted.Before(from) {
		counted = from
	}
	live, err := s.Count(ctx, to, to.Sub(counted)+time.Millisecond, Filter{Namespace: namespace}) // Count is without its begin
	return append(sums, live...), err
}

// History returns the reasons of misses before a time, and since when there are verdicts; zero: there are none before it.
func (s *Store) History(ctx context.Context, before time.Time, namespace string) (since time.Time, known map[reason.Reason]bool, err error) {
	known = map[reason.Reason]bool{}
	var first moment
	if err := s.hours.QueryRowContext(ctx, `SELECT min(hour) FROM hours WHERE hour < $1`, moment{before}).Scan(&first); err != nil {
		return since, known, err
	}
	where, args := Filter{Namespace: namespace}.narrow(` WHERE hour < $1 AND outcome = 'missed'`, moment{before})
	err = each(ctx, []*sql.DB{s.hours}, `SELECT DISTINCT reason FROM hours`+where, args, func(rows *sql.Rows) error {
		var r reason.Reason
		err := rows.Scan(&r)
		known[r] = true
		return err
	})
	return first.Time, known, err
}

// Cells returns the times of the stages in a time that begins with an hour, by hour and build. They are without a build if it is
// unknown now.
func (s *Store) Cells(ctx context.Context, from, to time.Time) (cells []baseline.Cell, err error) {
	err = each(ctx, []*sql.DB{s.hours}, `SELECT hour, stage, coalesce(builds.build, ''), cached, histogram
 FROM stages LEFT JOIN builds ON stages.build = builds.id WHERE hour >= $1 AND hour < $2 AND stages.build <> 0`,
		[]any{moment{from}, moment{to}}, func(rows *sql.Rows) error {
			var c baseline.Cell
			err := rows.Scan(&c.Hour, &c.Stage, document{&c.Build}, &c.Cached, document{&c.Times})
			cells = append(cells, c)
			return err
		})
	return cells, err
}

// KeepWeek keeps the finished report of a week, longer than its verdicts. Each replica may do it.
func (s *Store) KeepWeek(ctx context.Context, week string, made report.Report) error {
	_, err := s.hours.ExecContext(ctx, `INSERT INTO weeks VALUES ($1, $2) ON CONFLICT DO NOTHING`, week, document{made})
	return err
}

// Week returns the kept report of a week; nil if there is none.
func (s *Store) Week(ctx context.Context, week string) (made *report.Report, err error) {
	err = s.hours.QueryRowContext(ctx, `SELECT report FROM weeks WHERE week = $1`, week).Scan(document{&made})
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return made, err
}

// Kept returns the time since which the acts themselves are kept.
func (s *Store) Kept(now time.Time) time.Time {
	return now.AddDate(0, 0, -s.keep).UTC().Truncate(24 * time.Hour)
}
