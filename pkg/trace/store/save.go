package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/probe"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/report"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/trace/stage"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
)

const (
	// transactionLimit bounds a transaction whose context has no deadline.
	transactionLimit = 30 * time.Second

	monthsKept = 13
	settled    = 15 * time.Minute // after its end, an hour's verdicts are stored and the reasons of its misses final
)

// statement executes one in a transaction, unless an earlier one failed, and returns the number of rows it changed.
type statement func(query string, args ...any) (changed int64)

// write writes to a database in one transaction, unless ctx has ended. PostgreSQL's transactions run in the session with
// the writer's lock: if the session ends, the transaction ends too, so that a replica never writes without the lock. The
// end of the program does not cancel a begun transaction: database/sql would close the session a moment later, under the
// last save.
func (s *Store) write(ctx context.Context, db *sql.DB, do func(statement)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	deadline, bounded := ctx.Deadline()
	if !bounded {
		deadline = time.Now().Add(transactionLimit)
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	defer cancel()
	switch {
	case !s.pg:
		return transact(ctx, db.BeginTx, do)
	case s.lead == nil:
		return errStandby
	}
	return transact(ctx, s.lead.BeginTx, do)
}

func transact(ctx context.Context, begin func(context.Context, *sql.TxOptions) (*sql.Tx, error), do func(statement)) error {
	tx, err := begin(ctx, nil)
	if err != nil {
		return err
	}
	do(func(query string, args ...any) (changed int64) {
		var done sql.Result
		if err == nil {
			done, err = tx.ExecContext(ctx, query, args...)
		}
		if err == nil {
			changed, err = done.RowsAffected()
		}
		return changed
	})
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// Save stores a batch: first the verdicts, each in the file of its day, then the open acts. If it fails, or the process
// ends in between, the same batch may come again: existing verdicts stay unchanged.
func (s *Store) Save(ctx context.Context, b follow.Batch) error {
	if err := s.recount(ctx, b); err != nil {
		return fmt.Errorf("store late verdicts: %w", err)
	}
	if err := s.saveDays(ctx, b.Judged, insertAct); err != nil {
		return fmt.Errorf("store verdicts: %w", err)
	}
	if err := s.saveDays(ctx, b.Refined, refineAct); err != nil {
		return fmt.Errorf("store reasons: %w", err)
	}
	if err := s.write(ctx, s.open, func(run statement) {
		for i := range b.Open {
			run(`INSERT INTO open VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET act = excluded.act`, b.Open[i].Key().String(), document{&b.Open[i]})
		}
		for _, key := range b.Finished {
			run(`DELETE FROM open WHERE key = $1`, key.String())
		}
		if !b.Alive.IsZero() {
			run(setMeta, Alive, document{b.Alive.UTC()})
		}
	}); err != nil {
		return fmt.Errorf("store open acts: %w", err)
	}
	return nil
}

// saveDays saves acts in the files of their days.
func (s *Store) saveDays(ctx context.Context, acts []follow.Act, save func(statement, *follow.Act)) error {
	byDay := map[string][]*follow.Act{}
	for i := range acts {
		day := acts[i].JudgedAt.UTC().Format(dayFormat)
		byDay[day] = append(byDay[day], &acts[i])
	}
	for day, acts := range byDay {
		db, err := s.day(ctx, day)
		if err != nil {
			return err
		}
		if err := s.write(ctx, db, func(run statement) {
			for _, a := range acts {
				save(run, a)
			}
		}); err != nil {
			return err
		}
	}
	return nil
}

// RowOf returns the row of an act, without its evidence.
func RowOf(a *follow.Act) Row {
	t := &a.Timeline
	r := Row{Key: a.Key().String(), UID: t.UID, Act: t.Act, Namespace: t.Namespace, Name: t.Name, Node: t.Node, Outcome: a.Verdict.Outcome,
		Why: a.Verdict.Why, Class: string(a.Final.Class), First: string(a.First.Reason), Reason: string(a.Final.Reason), At: a.JudgedAt,
		Judged: a.Verdict.Judged.Middle().Seconds(), User: a.Verdict.User.Seconds()}
	if t.OwnerKind != "" {
		r.Owner = t.OwnerKind + "/" + t.OwnerName
	}
	return r
}

// insertAct stores a verdict; one that was stored before stays unchanged.
func insertAct(run statement, a *follow.Act) {
	r, t := RowOf(a), &a.Timeline
	if run(`INSERT INTO acts VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17) ON CONFLICT DO NOTHING`,
		r.Key, r.UID, r.Act, r.Namespace, r.Name, r.Node, r.Owner, r.Outcome, r.Why, r.Class, r.First, r.Reason, r.At.UnixMilli(),
		a.Verdict.Judged.Middle().Milliseconds(), a.Verdict.User.Milliseconds(), stagesOf(a), t.Build) == 0 {
		return
	}
	if t.Act == record.Creation && t.Node != "" {
		run(`INSERT INTO placed VALUES ($1, $2, 1, $3, $4) ON CONFLICT (hour, namespace)
 DO UPDATE SET pods = placed.pods + 1, cpu = placed.cpu + excluded.cpu, bytes = placed.bytes + excluded.bytes`,
			hourOf(a.JudgedAt), t.Namespace, t.CPU, t.Bytes)
	}
	saveEvidence(run, a)
}

func refineAct(run statement, a *follow.Act) {
	run(`UPDATE acts SET reason = $1, class = $2, stages = $3 WHERE key = $4`, a.Final.Reason, a.Final.Class, stagesOf(a), a.Key().String())
	saveEvidence(run, a)
}

// saveEvidence stores the timeline of a miss.
func saveEvidence(run statement, a *follow.Act) {
	if a.Verdict.Outcome == verdict.Missed {
		run(`INSERT INTO evidence VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET act = excluded.act`, a.Key().String(), document{a})
	}
}

// stagesOf encodes the times of stages: id=milliseconds.
func stagesOf(a *follow.Act) string {
	var parts []string
	until := a.JudgedAt
	if end := a.Timeline.End(); end.Known() {
		until = end.Arrival
	}
	for _, s := range stage.Of(&a.Timeline, until) {
		parts = append(parts, fmt.Sprintf("%s=%d", s.ID, s.Spent.Middle().Milliseconds()))
	}
	return strings.Join(parts, " ")
}

// SaveProbes adds the counts of minutes. The parts of a minute saved more than once add up.
func (s *Store) SaveProbes(ctx context.Context, counts []probe.Count) error {
	for _, c := range counts {
		db, err := s.day(ctx, c.Minute.UTC().Format(dayFormat))
		if err != nil {
			return err
		}
		if _, err := db.ExecContext(ctx, `INSERT INTO probes VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (minute, component, instance)
 DO UPDATE SET good = probes.good + excluded.good, bad = probes.bad + excluded.bad, blind = probes.blind + excluded.blind`,
			minuteOf(c.Minute), c.Component, c.Instance, c.Good, c.Bad, c.Blind); err != nil {
			return fmt.Errorf("store probes: %w", err)
		}
	}
	return nil
}

func hourOf(at time.Time) int64   { return at.Unix() / 3600 }
func minuteOf(at time.Time) int64 { return at.Unix() / 60 }

// CountHour adds up the acts of the oldest complete hour without sums, if there is one: the sums are kept longer than
// the acts. A standby replica adds none up.
func (s *Store) CountHour(ctx context.Context, now time.Time, builds map[int64]record.Build) error {
	if !s.Leads() {
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
	return s.SetNote(ctx, summed, end)
}

// counted returns the hour up to which the acts are added up.
func (s *Store) counted(ctx context.Context, now time.Time) (time.Time, error) {
	var at time.Time
	if err := s.Note(ctx, summed, &at); err != nil || !at.IsZero() {
		return at, err
	}
	first := now
	err := each(ctx, s.all(), `SELECT min(at) FROM acts`, nil, func(oldest struct{ At time.Time }) {
		if !oldest.At.IsZero() && oldest.At.Before(first) {
			first = oldest.At
		}
	})
	return first.UTC().Truncate(time.Hour), err
}

// recount has the hours since a late verdict or reason added up again.
func (s *Store) recount(ctx context.Context, b follow.Batch) error {
	var until time.Time
	if err := s.Note(ctx, summed, &until); err != nil || until.IsZero() {
		return err
	}
	first := until
	for _, acts := range [][]follow.Act{b.Judged, b.Refined} {
		for i := range acts {
			if at := acts[i].JudgedAt; at.Before(first) {
				first = at.UTC().Truncate(time.Hour)
			}
		}
	}
	if first.Equal(until) {
		return nil
	}
	return s.SetNote(ctx, summed, first)
}

func (s *Store) countHour(ctx context.Context, hour time.Time, builds map[int64]record.Build) error {
	counts, stages := map[sli.Act]int{}, report.Stages{}
	if err := s.Acts(ctx, hour, hour.Add(time.Hour), "", func(a sli.Act) {
		stages.Add(a)
		counts[sli.Act{Namespace: a.Namespace, Act: a.Act, Outcome: a.Outcome, Class: a.Class, Reason: a.Reason}]++
	}); err != nil {
		return err
	}
	at := hour.UnixMilli()
	return s.write(ctx, s.hours, func(run statement) {
		run(`DELETE FROM hours WHERE hour = $1`, at)
		run(`DELETE FROM stages WHERE hour = $1`, at)
		for a, n := range counts {
			run(`INSERT INTO hours VALUES ($1, $2, $3, $4, $5, $6, $7)`, at, a.Namespace, a.Act, a.Outcome, a.Class, a.Reason, n)
		}
		for k, h := range stages {
			run(`INSERT INTO stages VALUES ($1, $2, $3, $4, $5, $6)`, at, k.Act, k.Stage, k.Build, k.Cached, document{h})
		}
		for id, b := range builds {
			run(`INSERT INTO builds VALUES ($1, $2) ON CONFLICT DO NOTHING`, id, document{b})
		}
	})
}

// KeepWeek keeps the finished report of a week, longer than its verdicts. Each replica may do it.
func (s *Store) KeepWeek(ctx context.Context, week string, made report.Report) error {
	_, err := s.hours.ExecContext(ctx, `INSERT INTO weeks VALUES ($1, $2) ON CONFLICT DO NOTHING`, week, document{made})
	return err
}

// Kept returns the time since which the acts themselves are kept.
func (s *Store) Kept(now time.Time) time.Time {
	return now.AddDate(0, 0, -s.keep).UTC().Truncate(24 * time.Hour)
}
