package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/event/schemas/schematest"
	eventcenter "github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/trace/api"
	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/messages"
	"github.com/nodeagent/nodeagent/pkg/trace/probe"
	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/store"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
	remote "github.com/nodeagent/nodeagent/pkg/web/client"
)

// subscribe follows the event center's stream from its begin.
func subscribe(t *testing.T, center *remote.Client) <-chan json.RawMessage {
	t.Helper()
	answer, err := center.Send(t.Context(), http.MethodGet, "/v1/events?after=0", map[string]string{"Accept": "text/event-stream"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = answer.Body.Close() })
	events := make(chan json.RawMessage, 1000)
	go func() {
		for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && strings.Contains(data, `"specversion"`) {
				events <- json.RawMessage(data)
			}
		}
	}()
	return events
}

func judged(uid, node string, class reason.Class, because reason.Reason, at time.Time) follow.Act {
	a := follow.Act{Timeline: record.Timeline{Act: record.Creation, UID: uid, Namespace: "default", Name: "pod-" + uid, Node: node},
		Verdict: verdict.Verdict{Outcome: verdict.Delivered}, JudgedAt: at}
	if because != "" {
		a.Verdict.Outcome = verdict.Missed
		a.First = reason.Result{Reason: because, Class: class}
		a.Final = a.First
	}
	return a
}

// A subscriber of a real event center gets the misses of each minute and the changes of levels, each once, although the event center
// was away at first and tracecenter is started again.
func TestAnnouncements(t *testing.T) {
	center, _ := openCenter(t)
	events := subscribe(t, center)
	kept, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "data"), 8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kept.Close() })
	minute := time.Now().Truncate(time.Minute).Add(-time.Minute)
	now := minute.Add(75 * time.Second)
	batch := follow.Batch{}
	for i := range 100 {
		batch.Judged = append(batch.Judged, judged(fmt.Sprint("good", i), "node-2", "", "", minute))
	}
	for i := range 30 {
		batch.Judged = append(batch.Judged, judged(fmt.Sprintf("bad%02d", i), "node-1", reason.System, "SandboxFailed", minute.Add(time.Second)),
			judged(fmt.Sprint("user", i), "node-1", reason.User, "InitFailed", minute))
	}
	batch.Judged = append(batch.Judged, judged("full", "", reason.System, "CapacityExhausted", minute), judged("later", "", reason.System, "CapacityExhausted", now))
	if err := kept.Save(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	start := func(at time.Time) *messages.Sender {
		follower := follow.New(follow.Config{Promised: time.Minute})
		follower.Synced(at, true)
		sender := messages.NewSender(center, "prod", log)
		go repeat(t, sender.Send)
		server := &api.Server{Follower: follower, Store: kept, Prober: probe.New(nil, follower, log), Log: log, Now: time.Now, Sender: sender}
		server.Saved(at)
		server.Judge(t.Context(), at)
		for range 2 { // the second keeps that all have arrived
			if err := server.Announce(t.Context(), at); err != nil {
				t.Fatal(err)
			}
			wait(t, "sent", sender.Idle)
		}
		return sender
	}
	start(now)
	var got []string
	for range 5 {
		text := <-events
		if err := schematest.Problem(eventOf(t, text)); err != nil {
			t.Error(err)
		}
		var e struct {
			Source, Type string
			Data         struct {
				Reason, Rule, Before, After string
				Count                       int
				Examples                    []event.MissedPod
			}
		}
		if err := json.Unmarshal(eventOf(t, text), &e); err != nil {
			t.Fatal(err)
		}
		line := eventcenter.LineOf(eventcenter.Item{Event: eventOf(t, text)})
		if line.Detector != "tracecenter" || line.Message == "" || line.Subject == "" {
			t.Errorf("%+v", line)
		}
		d := e.Data
		got = append(got, strings.TrimRight(fmt.Sprint(e.Source, " ", d.Reason, d.Rule, " ", d.Count, len(d.Examples), " ", d.Before, d.After), " "))
	}
	slices.Sort(got)
	if want := []string{"/clusters/prod/nodes/node-1/tracecenter SandboxFailed 30 5", "/clusters/prod/tracecenter CapacityExhausted 1 1",
		"/clusters/prod/tracecenter DeliveryBudgetBurns 0 0 HealthyWarning", "/clusters/prod/tracecenter DeliveryBudgetBurnsFast 0 0 HealthyFatal",
		"/clusters/prod/tracecenter Health 0 0 HealthyFatal"}; !slices.Equal(got, want) {
		t.Errorf("%q,\nwant %q", got, want)
	}
	start(now.Add(time.Second)) // no level has changed
	if err := kept.SetNote(t.Context(), "announced", map[string]any{"minute": minute}); err != nil {
		t.Fatal(err)
	}
	start(now.Add(2 * time.Second)) // killed before it could keep that all had arrived
	start(minute.Add(135 * time.Second))
	text := <-events
	if !strings.Contains(string(text), `"pod-later"`) {
		t.Errorf("%s is there twice", text)
	}
	var journal struct{ Events []json.RawMessage }
	if _, err := center.Decode(t.Context(), http.MethodGet, "/v1/events?cluster=prod", nil, &journal); err != nil || len(journal.Events) != 6 {
		t.Errorf("%v, %d events in the journal", err, len(journal.Events))
	}
}

// eventOf returns the event in an item of a stream.
func eventOf(t *testing.T, text json.RawMessage) json.RawMessage {
	t.Helper()
	var item struct{ Event json.RawMessage }
	if err := json.Unmarshal(text, &item); err != nil || item.Event == nil {
		return text
	}
	return item.Event
}
