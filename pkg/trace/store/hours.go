package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/baseline"
	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/report"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
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
CREATE TABLE IF NOT EXISTS stale (hour BIGINT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS builds (id BIGINT PRIMARY KEY, build TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS weeks (week TEXT PRIMARY KEY, report TEXT NOT NULL) WITHOUT ROWID;`
)

// CountHour adds up the acts of the oldest complete hour without sums, if there is one: the sums are kept longer than
// the acts. A replica that does not write does nothing.
func (s *Store) CountHour(ctx context.Context, now time.Time, builds map[int64]record.Build) error {
	if s.pg && s.lead == nil {
		return nil
	}
	var stale sql.NullInt64
	if err := s.hours.QueryRowContext(ctx, `SELECT min(hour) FROM stale`).Scan(&stale); err != nil {
		return err
	}
	if hour := time.UnixMilli(stale.Int64); stale.Valid && hour.Before(s.Kept(now)) { // its acts are dropped
		return s.exec(ctx, `DELETE FROM stale WHERE hour = ?`, stale.Int64)
	} else if stale.Valid {
		return s.countHour(ctx, hour, builds)
	}
	hour, err := s.counted(ctx, now)
	if end := hour.Add(time.Hour); err == nil && !end.Add(settled).After(now) {
		if err = s.countHour(ctx, hour, builds); err == nil {
			err = s.inTransaction(ctx, s.open, func(tx writer) error {
				return tx.exec(ctx, `INSERT INTO meta VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value`, countedMeta,
					end.Format(time.RFC3339Nano))
			})
		}
	}
	return err
}

func (s *Store) exec(ctx context.Context, query string, args ...any) error {
	return s.inTransaction(ctx, s.hours, func(tx writer) error { return tx.exec(ctx, query, args...) })
}

// counted returns the hour up to which the acts are added up.
func (s *Store) counted(ctx context.Context, now time.Time) (time.Time, error) {
	if at, err := s.meta(ctx, countedMeta); err != nil || !at.IsZero() {
		return at, err
	}
	first := now
	for _, db := range s.all() {
		var at sql.NullInt64
		if err := db.QueryRowContext(ctx, `SELECT min(at) FROM acts`).Scan(&at); err != nil {
			return first, err
		}
		if oldest := time.UnixMilli(at.Int64); at.Valid && oldest.Before(first) {
			first = oldest
		}
	}
	return first.UTC().Truncate(time.Hour), nil
}

// recount has hours added up again that get a late verdict or reason.
func (s *Store) recount(ctx context.Context, b follow.Batch) error {
	counted, err := s.meta(ctx, countedMeta)
	if err != nil || counted.IsZero() {
		return err
	}
	for _, acts := range [][]follow.Act{b.Judged, b.Refined} {
		for i := range acts {
			if at := acts[i].JudgedAt; at.Before(counted) {
				if err := s.exec(ctx, `INSERT INTO stale VALUES (?) ON CONFLICT DO NOTHING`, at.Truncate(time.Hour).UnixMilli()); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (s *Store) countHour(ctx context.Context, hour time.Time, builds map[int64]record.Build) error {
	counts, stages := map[report.Act]int{}, report.Stages{}
	if err := s.Acts(ctx, hour, hour.Add(time.Hour), "", func(a report.Act) {
		stages.Add(a)
		counts[report.Act{Namespace: a.Namespace, Act: a.Act, Outcome: a.Outcome, Class: a.Class, Reason: a.Reason}]++
	}); err != nil {
		return err
	}
	at := hour.UnixMilli()
	return s.inTransaction(ctx, s.hours, func(tx writer) error {
		for _, table := range []string{"hours", "stages", "stale"} {
			if err := tx.exec(ctx, `DELETE FROM `+table+` WHERE hour = ?`, at); err != nil { //nolint:gosec // a table's name
				return err
			}
		}
		for a, n := range counts {
			if err := tx.exec(ctx, `INSERT INTO hours VALUES (?, ?, ?, ?, ?, ?, ?)`, at, a.Namespace, string(a.Act), string(a.Outcome),
				string(a.Class), string(a.Reason), n); err != nil {
				return err
			}
		}
		for k, h := range stages {
			text, err := json.Marshal(h)
			if err != nil {
				return err
			}
			if err := tx.exec(ctx, `INSERT INTO stages VALUES (?, ?, ?, ?, ?, ?)`, at, string(k.Act), string(k.Stage), k.Build, k.Cached,
				string(text)); err != nil {
				return err
			}
		}
		for id, b := range builds {
			text, err := json.Marshal(b)
			if err != nil {
				return err
			}
			if err := tx.exec(ctx, `INSERT INTO builds VALUES (?, ?) ON CONFLICT DO NOTHING`, id, string(text)); err != nil {
				return err
			}
		}
		return nil
	})
}

// expireHours drops sums that are too old.
func (s *Store) expireHours(ctx context.Context, now time.Time) error {
	oldest := now.AddDate(0, -monthsKept, 0)
	err := errors.Join(s.exec(ctx, `DELETE FROM hours WHERE hour < ?`, oldest.UnixMilli()),
		s.exec(ctx, `DELETE FROM stages WHERE hour < ?`, oldest.UnixMilli()),
		s.exec(ctx, `DELETE FROM weeks WHERE week < ?`, report.WeekOf(oldest)))
	if errors.Is(err, errStandby) {
		return nil
	}
	return err
}

// Acts visits the acts of a time, of one namespace if it is not empty.
func (s *Store) Acts(ctx context.Context, from, to time.Time, namespace string, visit func(report.Act)) error {
	query, args := Filter{Namespace: namespace}.narrow(`SELECT namespace, act, outcome, class, reason, owner, node, stages, build FROM acts
 WHERE at >= ? AND at < ?`, []any{from.UnixMilli(), to.UnixMilli()})
	return s.eachDay(ctx, from, query, args, func(rows *sql.Rows) error {
		var a report.Act
		err := rows.Scan(&a.Namespace, &a.Act, &a.Outcome, &a.Class, &a.Reason, &a.Owner, &a.Node, &a.Stages, &a.Build)
		visit(a)
		return err
	})
}

// MissesOf visits the misses of a time, those of deletions with their evidence.
func (s *Store) MissesOf(ctx context.Context, from, to time.Time, namespace string, visit func(Row)) error {
	query, args := Filter{Namespace: namespace}.narrow(`SELECT acts.key, acts.uid, acts.act, namespace, name, node, owner, outcome, why, class, first, reason, at,
 judged, "user", stages, CASE WHEN acts.act = 'deletion' THEN coalesce(evidence.act, '') ELSE '' END FROM acts LEFT JOIN evidence USING (key)
 WHERE at >= ? AND at < ? AND outcome = 'missed'`, []any{from.UnixMilli(), to.UnixMilli()})
	return s.eachDay(ctx, from, query, args, func(rows *sql.Rows) error {
		r, err := scan(rows)
		visit(r)
		return err
	})
}

// eachDay visits the rows of a query in the files of a day and of later ones.
func (s *Store) eachDay(ctx context.Context, oldest time.Time, query string, args []any, visit func(*sql.Rows) error) error {
	for _, db := range s.since(oldest.UTC().Format(dayFormat)) {
		if err := s.each(ctx, db, query, args, visit); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) each(ctx context.Context, db *sql.DB, query string, args []any, visit func(*sql.Rows) error) error {
	rows, err := db.QueryContext(ctx, s.rebind(query), args...)
	if err != nil {
		return err
	}
	for rows.Next() {
		if err := visit(rows); err != nil {
			return errors.Join(err, rows.Close())
		}
	}
	return errors.Join(rows.Err(), rows.Close())
}

// Sums counts the verdicts of a time that begins with an hour, from the hours added up and the acts after them.
func (s *Store) Sums(ctx context.Context, from, to time.Time, namespace string) (counts []sli.Count, err error) {
	counted, err := s.counted(ctx, to)
	if err != nil {
		return nil, err
	}
	until := to
	if counted.Before(to) {
		until = counted
	}
	query, args := Filter{Namespace: namespace}.narrow(`SELECT act, outcome, class, reason, sum(n) FROM hours WHERE hour >= ? AND hour < ?`,
		[]any{from.UnixMilli(), until.UnixMilli()})
	if err := s.each(ctx, s.hours, query+` GROUP BY act, outcome, class, reason`, args, func(rows *sql.Rows) error {
		var c sli.Count
		err := rows.Scan(&c.Act, &c.Outcome, &c.Class, &c.Reason, &c.N)
		counts = append(counts, c)
		return err
	}); err != nil || !counted.Before(to) {
		return counts, err
	}
	if counted.Before(from) {
		counted = from
	}
	live, err := s.Count(ctx, to, to.Sub(counted)+time.Millisecond, Filter{Namespace: namespace}) // Count is without its begin
	return append(counts, live...), err
}

// History returns the reasons of misses before a time, and since when there are verdicts; zero: there are none before it.
func (s *Store) History(ctx context.Context, before time.Time, namespace string) (since time.Time, known map[reason.Reason]bool, err error) {
	known = map[reason.Reason]bool{}
	var first sql.NullInt64
	if err := s.hours.QueryRowContext(ctx, s.rebind(`SELECT min(hour) FROM hours WHERE hour < ?`), before.UnixMilli()).Scan(&first); err != nil || !first.Valid {
		return since, known, err
	}
	query, args := Filter{Namespace: namespace}.narrow(`SELECT DISTINCT reason FROM hours WHERE hour < ? AND outcome = ?`,
		[]any{before.UnixMilli(), string(verdict.Missed)})
	return time.UnixMilli(first.Int64).UTC(), known, s.each(ctx, s.hours, query, args, func(rows *sql.Rows) error {
		var r reason.Reason
		err := rows.Scan(&r)
		known[r] = true
		return err
	})
}

// Cells returns the times of the stages in a time that begins with an hour, by hour and build. They are without a build if it is
// unknown now.
func (s *Store) Cells(ctx context.Context, from, to time.Time) (cells []baseline.Cell, err error) {
	builds := map[int64]record.Build{}
	if err := s.each(ctx, s.hours, `SELECT id, build FROM builds`, nil, func(rows *sql.Rows) error {
		var id int64
		var text string
		if err := rows.Scan(&id, &text); err != nil {
			return err
		}
		var b record.Build
		err := json.Unmarshal([]byte(text), &b)
		builds[id] = b
		return err
	}); err != nil {
		return nil, err
	}
	return cells, s.each(ctx, s.hours, `SELECT hour, stage, build, cached, histogram FROM stages WHERE hour >= ? AND hour < ? AND build <> 0`,
		[]any{from.UnixMilli(), to.UnixMilli()}, func(rows *sql.Rows) error {
			var c baseline.Cell
			var id int64
			var text string
			if err := rows.Scan(&c.Hour, &c.Stage, &id, &c.Cached, &text); err != nil {
				return err
			}
			c.Build = builds[id]
			cells = append(cells, c)
			return json.Unmarshal([]byte(text), &cells[len(cells)-1].Times)
		})
}

// KeepWeek keeps the finished report of a week, longer than its verdicts. Each replica may do it.
func (s *Store) KeepWeek(ctx context.Context, week string, made report.Report) error {
	text, err := json.Marshal(made)
	if err != nil {
		return err
	}
	_, err = s.hours.ExecContext(ctx, s.rebind(`INSERT INTO weeks VALUES (?, ?) ON CONFLICT DO NOTHING`), week, string(text))
	return err
}

// Week returns the kept report of a week; nil if there is none.
func (s *Store) Week(ctx context.Context, week string) (*report.Report, error) {
	var text string
	err := s.hours.QueryRowContext(ctx, s.rebind(`SELECT report FROM weeks WHERE week = ?`), week).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var made report.Report
	if err := json.Unmarshal([]byte(text), &made); err != nil {
		return nil, fmt.Errorf("report of %s: %w", week, err)
	}
	return &made, nil
}

// Kept returns the time since which the acts themselves are kept.
func (s *Store) Kept(now time.Time) time.Time {
	return now.AddDate(0, 0, -s.keep).UTC().Truncate(24 * time.Hour)
}
