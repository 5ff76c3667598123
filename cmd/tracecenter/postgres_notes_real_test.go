package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/health"
	"github.com/nodeagent/nodeagent/pkg/trace/messages"
	"github.com/nodeagent/nodeagent/pkg/trace/nodefault"
	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/store"
)

// In PostgreSQL, only the writing replica keeps what was announced, and the next writer continues with it. Nodes are counted and
// the misses of an owner found as in SQLite.
func TestRealPostgreSQLNotes(t *testing.T) {
	p := newPostgres(t)
	ctx, now := t.Context(), time.Now()
	kept, err := store.OpenPostgres(ctx, p.url(), 8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kept.Close() })
	sent := messages.Sent{Minute: now.UTC().Truncate(time.Minute), Levels: map[string]messages.Level{messages.Health: {Level: health.Fatal, AsOf: now.UTC().Truncate(0)}}}
	if err := kept.SetNote(ctx, "announced", sent); err == nil || kept.Leads() {
		t.Error("a replica without the lock writes")
	}
	if _, _, err := kept.Lead(ctx); err != nil || !kept.Leads() {
		t.Fatal(err)
	}
	var none, read messages.Sent
	if err := kept.Note(ctx, "announced", &none); err != nil || !none.Minute.IsZero() {
		t.Errorf("%v %+v", err, none)
	}
	for range 2 {
		if err := kept.SetNote(ctx, "announced", sent); err != nil {
			t.Fatal(err)
		}
	}
	if err := kept.Note(ctx, "announced", &read); err != nil || fmt.Sprint(read) != fmt.Sprint(sent) {
		t.Errorf("%v %v, want %v", err, read, sent)
	}
	late := judged("late", "n1", reason.System, "SandboxFailed", now)
	late.Timeline.OwnerUID = "uid-1"
	if err := kept.Save(ctx, follow.Batch{Judged: []follow.Act{late, judged("good", "n1", "", "", now), judged("user", "n1", reason.User, "InitFailed", now)}}); err != nil {
		t.Fatal(err)
	}
	days := map[string]nodefault.Score{"n1": {Node: "n1"}}
	if err := kept.CountNodes(ctx, now.Add(time.Second), time.Hour, days); err != nil || days["n1"].Delivered != 1 || days["n1"].Missed != 1 {
		t.Errorf("%v %+v", err, days)
	}
	for owner, want := range map[string]int{"uid-1": 1, "uid": 0} {
		if found, err := kept.Misses(ctx, now.Add(time.Second), time.Hour, store.Filter{Owner: owner}); err != nil || len(found) != want {
			t.Errorf("%s: %v %+v", owner, err, found)
		}
	}
}

// A replica that starts waits for no transaction of the writer. If it must change the tables, it waits, and both come to their
// end: the removal of old days reads acts before it deletes some.
func TestRealPostgreSQLStartBesideAWriter(t *testing.T) {
	p := newPostgres(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	start := func() error {
		kept, err := store.OpenPostgres(ctx, p.url(), 8)
		if err != nil {
			return err
		}
		return kept.Close()
	}
	if err := start(); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("pgx", p.url())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	for _, changes := range []bool{false, true} {
		if changes {
			if _, err := db.ExecContext(ctx, `DELETE FROM meta WHERE name = 'schema'`); err != nil {
				t.Fatal(err)
			}
		}
		writer, err := db.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = writer.ExecContext(ctx, `DELETE FROM evidence WHERE key IN (SELECT key FROM acts WHERE at < 0)`)
		started := make(chan error, 1)
		go func() { started <- start() }()
		if changes {
			wait(t, "starting replica waits", func() bool {
				n, err := p.count("SELECT count(*) FROM pg_locks WHERE NOT granted")
				return err == nil && n > 0
			})
		} else if err := <-started; err != nil {
			t.Errorf("start: %v", err)
		}
		_, again := writer.ExecContext(ctx, `DELETE FROM acts WHERE at < 0`)
		if err := errors.Join(err, again, writer.Commit()); err != nil {
			t.Errorf("changes %v, writer: %v", changes, err)
		}
		if changes {
			if err := <-started; err != nil {
				t.Errorf("start: %v", err)
			}
		}
	}
}
