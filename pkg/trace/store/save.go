package store

import (
	"context"
	"database/sql"
	"encoding/json"
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
	byDay := map[string][]follow.Act{}
	for _, a := range b.Judged {
		day := a.JudgedAt.UTC().Format(dayFormat)
		byDay[day] = append(byDay[day], a)
	}
	for day, acts := range byDay {
		if err := s.saveDay(ctx, day, acts, insertAct); err != nil {
			return fmt.Errorf("store verdicts: %w", err)
		}
	}
	for _, a := range b.Refined {
		if err := s.saveDay(ctx, a.JudgedAt.UTC().Format(dayFormat), []follow.Act{a}, refineAct); err != nil {
			return fmt.Errorf("store reasons: %w", err)
		}
	}
	err := s.inTransaction(ctx, s.open, func(tx writer) error { return saveOpen(ctx, tx, b) })
	if err != nil {
		return fmt.Errorf("store open acts: %w", err)
	}
	return nil
}

func saveOpen(ctx context.Context, tx writer, b follow.Batch) error {
	for _, a := range b.Open {
		text, err := json.Marshal(a)
		if err != nil {
			return err
		}
		if err := tx.exec(ctx, `INSERT INTO open VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET act = excluded.act`, a.Key().String(),
			string(text)); err != nil {
			return err
		}
	}
	for _, key := range b.Finished {
		if err := tx.exec(ctx, `DELETE FROM open WHERE key = ?`, key.String()); err != nil {
			return err
		}
	}
	if b.Alive.IsZero() {
		return nil
	}
	return tx.exec(ctx, `INSERT INTO meta VALUES ('alive', ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value`,
		b.Alive.UTC().Format(time.RFC3339Nano))
}

func (s *Store) saveDay(ctx context.Context, day string, acts []follow.Act, save func(context.Context, writer, *follow.Act) error) error {
	db, err := s.day(ctx, day)
	if err != nil {
		return err
	}
	return s.inTransaction(ctx, db, func(tx writer) error {
		for i := range acts {
			if err := save(ctx, tx, &acts[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// inTransaction writes to a database. PostgreSQL's transactions run in the session with the writer's lock: if
// the session ends, the transaction ends too, so that a replica never writes without the lock.
func (s *Store) inTransaction(ctx context.Context, db *sql.DB, do func(writer) error) error {
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
	if err := do(writer{tx, s}); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func insertAct(ctx context.Context, tx writer, a *follow.Act) error {
	t := &a.Timeline
	owner := ""
	if t.OwnerKind != "" {
		owner = t.OwnerKind + "/" + t.OwnerName
	}
	stored, err := tx.execute(ctx, `INSERT INTO acts VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT DO NOTHING`, a.Key().String(), t.UID, string(t.Act),
		t.Namespace, t.Name, t.Node, owner, string(a.Verdict.Outcome), a.Verdict.Why, string(a.Final.Class), string(a.First.Reason),
		string(a.Final.Reason), a.JudgedAt.UnixMilli(), a.Verdict.Judged.Middle().Milliseconds(), a.Verdict.User.Milliseconds(),
		stagesOf(a), t.Build)
	if err != nil {
		return err
	}
	if n, err := stored.RowsAffected(); err != nil || n == 0 { // it was stored before
		return err
	}
	return errors.Join(savePlaced(ctx, tx, a), saveEvidence(ctx, tx, a))
}

func refineAct(ctx context.Context, tx writer, a *follow.Act) error {
	if err := tx.exec(ctx, `UPDATE acts SET reason = ?, class = ?, stages = ? WHERE key = ?`, string(a.Final.Reason),
		string(a.Final.Class), stagesOf(a), a.Key().String()); err != nil {
		return err
	}
	return saveEvidence(ctx, tx, a)
}

// saveEvidence stores the timeline of a miss.
func saveEvidence(ctx context.Context, tx writer, a *follow.Act) error {
	if a.Verdict.Outcome != verdict.Missed {
		return nil
	}
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return tx.exec(ctx, `INSERT INTO evidence VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET act = excluded.act`, a.Key().String(), string(text))
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
