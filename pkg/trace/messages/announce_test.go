package messages

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/trace/health"
	"github.com/nodeagent/nodeagent/pkg/trace/store"
)

var minute = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func misses(t *testing.T, rows []store.Row) (all []event.Missed, ids map[string]bool) {
	t.Helper()
	events, err := Misses("prod", minute, rows)
	if err != nil {
		t.Fatal(err)
	}
	ids = map[string]bool{}
	for _, e := range events {
		var m event.Missed
		if err := json.Unmarshal(e.Data(), &m); err != nil {
			t.Fatal(err)
		}
		all, ids[e.Source()+e.ID()] = append(all, m), true
	}
	return all, ids
}

// A storm has at most 201 events a minute, which add up to all misses, and the order of the verdicts does not matter.
func TestStorm(t *testing.T) {
	var rows []store.Row
	for i := range 3000 {
		rows = append(rows, store.Row{First: "SandboxFailed", Class: "system", Node: fmt.Sprint("n", i%1000), Name: fmt.Sprint("p", i), Key: fmt.Sprint(i), At: minute})
	}
	for range 10 {
		rows = append(rows, store.Row{First: "NodeLost", Class: "system", Node: "lost", At: minute})
	}
	all, ids := misses(t, rows)
	sum := 0
	for _, m := range all {
		sum += m.Count
		if len(m.Examples) > event.MaxExamples {
			t.Errorf("%d examples", len(m.Examples))
		}
	}
	if len(all) != 201 || len(ids) != 201 || sum != 3010 || all[0].Reason != "NodeLost" || all[200].Reason != "other" || all[200].Node != "" {
		t.Errorf("%d events, %d IDs, %d misses, %+v", len(all), len(ids), sum, all[200])
	}
	slices.Reverse(rows[:3000])
	if _, again := misses(t, rows); fmt.Sprint(again) != fmt.Sprint(ids) {
		t.Error("other IDs")
	}
}

// Each change is one event. Made again from the same state, it has the same ID; later, the same change has another one.
func TestChanges(t *testing.T) {
	change := func(s Sent, level health.Level, at time.Time) ([]cloudevents.Event, Sent) {
		events, after, err := s.Changes("prod", []Rule{{Health, level, slices.Repeat([]string{strings.Repeat("because ", 1000)}, 100)}}, at)
		if err != nil {
			t.Fatal(err)
		}
		return events, after
	}
	var s Sent
	if events, _ := change(s, health.Healthy, minute); len(events) != 0 {
		t.Errorf("healthy from the start: %v", events)
	}
	first, fatal := change(s, health.Fatal, minute)
	text, err := first[0].MarshalJSON()
	if err == nil {
		_, err = event.Decode(text)
	}
	if err != nil {
		t.Errorf("the event center refuses many long causes: %v", err)
	}
	again, _ := change(s, health.Fatal, minute.Add(time.Second))
	same, _ := change(fatal, health.Fatal, minute.Add(time.Minute))
	back, healthy := change(fatal, health.Healthy, minute.Add(time.Minute))
	later, _ := change(healthy, health.Fatal, minute.Add(2*time.Minute))
	if len(first) != 1 || len(again) != 1 || len(same) != 0 || len(back) != 1 || len(later) != 1 {
		t.Fatal(first, again, same, back, later)
	}
	if first[0].ID() != again[0].ID() || later[0].ID() == first[0].ID() || back[0].Extensions()["severity"] != "fatal" {
		t.Errorf("%v %v %v", first, again, later)
	}
}
