package main

import (
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
