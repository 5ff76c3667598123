package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/stage"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
)

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
	if err := s.inTransaction(ctx, s.open, func(ctx context.Context, tx *sql.Tx) error { return saveOpen(ctx, tx, b) }); err != nil {
		return fmt.Errorf("store open acts: %w", err)
	}
	return nil
}

func saveOpen(ctx context.Context, tx *sql.Tx, b follow.Batch) error {
	for i := range b.Open {
		if err := exec(ctx, tx, `INSERT INTO open VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET act = excluded.act`, b.Open[i].Key().String(),
			document{&b.Open[i]}); err != nil {
			return err
		}
	}
	for _, key := range b.Finished {
		if err := exec(ctx, tx, `DELETE FROM open WHERE key = $1`, key.String()); err != nil {
			return err
		}
	}
	if b.Alive.IsZero() {
		return nil
	}
	return setMeta(ctx, tx, "alive", b.Alive)
}

// saveDays saves acts in the files of their days.
func (s *Store) saveDays(ctx context.Context, acts []follow.Act, save func(context.Context, *sql.Tx, *follow.Act) error) error {
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
		if err := s.inTransaction(ctx, db, func(ctx context.Context, tx *sql.Tx) error {
			for _, a := range acts {
				if err := save(ctx, tx, a); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// transactionLimit bounds a transaction whose context has no deadline.
const transactionLimit = 30 * time.Second

// inTransaction writes to a database, unless ctx has ended. PostgreSQL's transactions run in the session with the writer's
// lock: if the session ends, the transaction ends too, so that a replica never writes without the lock. The end of the
// program does not cancel a begun transaction: database/sql would close the session a moment later, under the last
// save.
func (s *Store) inTransaction(ctx context.Context, db *sql.DB, do func(context.Context, *sql.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	deadline, bounded := ctx.Deadline()
	if !bounded {
		deadline = time.Now().Add(transactionLimit)
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	defer cancel()
	begin := db.BeginTx
	if s.pg {
		if s.lead == nil {
			return errStandby
		}
		begin = s.lead.BeginTx
	}
	tx, err := begin(ctx, nil)
	if err != nil {
		return err
	}
	if err := do(ctx, tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func exec(ctx context.Context, tx *sql.Tx, query string, args ...any) error {
	_, err := tx.ExecContext(ctx, query, args...)
	return err
}

func insertAct(ctx context.Context, tx *sql.Tx, a *follow.Act) error {
	t := &a.Timeline
	owner := ""
	if t.OwnerKind != "" {
		owner = t.OwnerKind + "/" + t.OwnerName
	}
	stored, err := tx.ExecContext(ctx, `INSERT INTO acts VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
 ON CONFLICT DO NOTHING`, a.Key().String(), t.UID, t.Act, t.Namespace, t.Name, t.Node, owner, a.Verdict.Outcome, a.Verdict.Why, a.Final.Class,
		a.First.Reason, a.Final.Reason, moment{a.JudgedAt}, a.Verdict.Judged.Middle().Milliseconds(), a.Verdict.User.Milliseconds(), stagesOf(a), t.Build)
	if err != nil {
		return err
	}
	if n, err := stored.RowsAffected(); err != nil || n == 0 { // it was stored before
		return err
	}
	return errors.Join(savePlaced(ctx, tx, a), saveEvidence(ctx, tx, a))
}

func refineAct(ctx context.Context, tx *sql.Tx, a *follow.Act) error {
	if err := exec(ctx, tx, `UPDATE acts SET reason = $1, class = $2, stages = $3 WHERE key = $4`, a.Final.Reason, a.Final.Class, stagesOf(a),
		a.Key().String()); err != nil {
		return err
	}
	return saveEvidence(ctx, tx, a)
}

// saveEvidence stores the timeline of a miss.
func saveEvidence(ctx context.Context, tx *sql.Tx, a *follow.Act) error {
	if a.Verdict.Outcome != verdict.Missed {
		return nil
	}
	return exec(ctx, tx, `INSERT INTO evidence VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET act = excluded.act`, a.Key().String(), document{a})
}

// stagesOf encodes the times of stages: id=milliseconds.
func stagesOf(a *follow.Act) string {
	var parts []string
	end := a.Timeline.End()
	until := a.JudgedAt
	if end.Known() {
		until = end.Arrival
	}
	for _, s := range stage.Of(&a.Timeline, until) {
		parts = append(parts, fmt.Sprintf("%s=%d", s.ID, s.Spent.Middle().Milliseconds()))
	}
	return strings.Join(parts, " ")
}
