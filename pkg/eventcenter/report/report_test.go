package report

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/web"
)

func november(day, hour int) time.Time { return time.Date(2026, 11, day, hour, 0, 0, 0, time.UTC) }

const seconds = 1000 // milliseconds

// A fault open over several midnights is found once, counts as open at the beginning and end of each day between, and
// affects the availability of each day.
func TestOverMidnight(t *testing.T) {
	w := newWorld(t, november(20, 6), time.UTC)
	a := w.agent("n")
	w.store1(a.event(event.AgentStarted, finding.Info, event.Agent{}))
	w.at(20, 18, 0)
	w.store1(a.raise(newFault("disk", "sda", finding.Fatal), 10*time.Second))
	w.at(23, 6, 0)
	w.store1(a.clear("disksda"))
	w.at(24, 12, 0)
	type day struct {
		Before, Found, Cleared, Open int
		Available, Unavailable       int64
	}
	want := map[string]day{
		"2026-11-20": {0, 1, 0, 1, 12 * 3600, 6 * 3600}, "2026-11-21": {1, 0, 0, 1, 0, 24 * 3600},
		"2026-11-22": {1, 0, 0, 1, 0, 24 * 3600}, "2026-11-23": {1, 0, 1, 0, 18 * 3600, 6 * 3600},
		"2026-11-24": {0, 0, 0, 0, 12 * 3600, 0},
	}
	db := w.count()
	db.place(map[string]model.Place{"n": {}, "m": {}})
	for name, want := range want {
		r := w.report(Daily, name)
		got := day{r.Faults.OpenBefore, r.Faults.Found, r.Faults.Cleared, r.Faults.Open, 0, 0}
		if len(r.Worst) == 1 {
			got.Available, got.Unavailable = r.Worst[0].Time.Available/seconds, r.Worst[0].Time.Unavailable/seconds
		} else {
			got.Available = int64(math.Round(r.Availability.Available * 12 * 3600))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if r.Partial != (name == "2026-11-24") {
			t.Errorf("%s: partial %t", name, r.Partial)
		}
		db.compare(r, w.now)
	}
	r := w.report(Daily, "2026-11-21")
	if len(r.NeedsPeople) != 1 || r.NeedsPeople[0].Seconds != 30*3600 || r.NeedsPeople[0].Node != "n" {
		t.Errorf("%+v", r.NeedsPeople)
	}
	if r := w.report(Daily, "2026-11-23"); r.Clear.Median != 60*3600 || r.Clear.Count != 1 {
		t.Errorf("time to clear %+v", r.Clear)
	}
	week := w.report(Weekly, "2026-11-21") // Monday 16 to Sunday 22: no events on the first days
	if week.Name != "2026-W47" || !week.Partial || week.Faults.Found != 1 || week.Faults.Open != 1 ||
		strings.Join(week.Missing, " ") != "2026-11-16 2026-11-17 2026-11-18 2026-11-19" ||
		week.Worst[0].Time.Unavailable != 54*3600*seconds {
		t.Errorf("%+v", week)
	}
	week = w.report(Weekly, "today")
	if week.Name != "2026-W48" || week.Faults.OpenBefore != 1 || week.Faults.Cleared != 1 || !week.Partial {
		t.Errorf("%+v", week.Faults)
	}
}

// A day of 25 hours counts as such.
func TestLongDay(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, time.Date(2026, 10, 24, 12, 0, 0, 0, berlin), berlin)
	a := w.agent("n")
	w.store1(a.raise(newFault("disk", "sda", finding.Fatal), 0))
	w.now = time.Date(2026, 10, 26, 12, 0, 0, 0, berlin)
	if r := w.report(Daily, "2026-10-25"); r.Worst[0].Time.Unavailable != 25*3600*seconds || r.Timezone != "Europe/Berlin" {
		t.Errorf("%+v", r.Worst)
	}
}

// A node counts from its start to its removal; a later node with its name is a different one.
func TestJoinsAndGoes(t *testing.T) {
	w := newWorld(t, november(20, 12), time.UTC)
	old, other := w.agent("n"), w.agent("m")
	w.store1(old.event(event.AgentStarted, finding.Info, event.Agent{}), other.event(event.AgentStarted, finding.Info, event.Agent{}))
	w.at(20, 14, 0)
	w.store1(old.raise(newFault("disk", "sda", finding.Fatal), 0))
	w.at(20, 15, 0)
	w.store1(w.center(event.NodeRemoved, "n", `{"reason":"NodeReplaced"}`))
	w.at(20, 20, 0)
	fresh := w.agent("n")
	fresh.restart()
	w.store1(fresh.event(event.AgentStarted, finding.Info, event.Agent{}))
	w.at(21, 0, 1)
	r := w.report(Daily, "2026-11-20")
	a := r.Availability
	if want := (model.Time{Available: 6 * 3600 * seconds, Unavailable: 3600 * seconds}); len(r.Worst) != 1 || r.Worst[0].Time != want {
		t.Errorf("%+v", r.Worst)
	}
	if math.Abs(a.Available-(1+6.0/7)/2) > 1e-9 || a.Nodes != 2 || a.Joined != 3 || a.Removed != 1 {
		t.Errorf("%+v", a)
	}
	if r.Faults.Removed != 1 || r.Faults.Cleared != 0 || r.Faults.Open != 0 || r.Clear.Count != 0 {
		t.Errorf("%+v", r.Faults)
	}
	db := w.count()
	db.place(map[string]model.Place{"n": {}, "m": {}})
	db.compare(r, w.now)
}

// Days without events have a report too; days before the first event have none, and a date must be valid.
func TestEmptyDay(t *testing.T) {
	w := newWorld(t, november(20, 12), time.UTC)
	refused := func(date string, status int, reason string) {
		t.Helper()
		_, err := w.keeper.Report(Daily, date)
		if r, ok := errors.AsType[*web.Refusal](err); !ok || r.Status != status || !strings.Contains(r.Reason, reason) {
			t.Errorf("%s: %v", date, err)
		}
	}
	refused("today", http.StatusNotFound, "nothing was received")
	w.store1(w.agent("n").event(event.AgentStarted, finding.Info, event.Agent{}))
	w.at(23, 12, 0)
	r := w.report(Daily, "2026-11-21")
	if r.Partial || r.Faults != (Faults{}) || r.Availability.Available != 1 || r.Availability.Nodes != 1 || r.Before != r.Offset {
		t.Errorf("%+v", r)
	}
	for _, date := range []string{"2026-11-19", "2026-11-24"} {
		refused(date, http.StatusNotFound, "there are of 2026-11-20 to 2026-11-23")
	}
	for _, date := range []string{"2026-13-01", "../../x", "20261120", "tomorrow"} {
		refused(date, http.StatusBadRequest, "want a day as")
	}
}

// Unknown states do not count as available: while agents are silent or stopped, or too many are silent at the same
// time. Declared maintenance is excluded, and people's notes count.
func TestStates(t *testing.T) {
	w := newWorld(t, november(20, 0), time.UTC)
	a := w.agent("n")
	w.store1(a.event(event.AgentStarted, finding.Info, event.Agent{}))
	silence := `{"reason":"x","message":"","since":"2026-11-01T00:00:00Z"%s}`
	for _, next := range []func(){
		func() { w.store1(w.center(event.NodeBlind, "n", fmt.Sprintf(silence, ``))) },                 // 2: unknown
		func() { w.store1(w.center(event.NodeBlind, "n", fmt.Sprintf(silence, `,"ready":"False"`))) }, // 4: not available
		func() { w.store1(w.center(event.NodeLost, "n", fmt.Sprintf(silence, ``))) },                  // 6: not available
		func() { w.store1(w.center(event.NodeSeen, "n", fmt.Sprintf(silence, ``))) },                  // 8: available
		func() { w.store1(w.center(event.ClusterSilent, "", fmt.Sprintf(silence, ``))) },              // 10: unknown
		func() { w.store1(w.center(event.ClusterSeen, "", fmt.Sprintf(silence, ``))) },                // 12: available
		func() { w.store1(a.event(event.AgentStopping, finding.Info, event.Agent{})) },                // 14: unknown
		func() { a.restart(); w.store1(a.event(event.AgentStarted, finding.Info, event.Agent{})) },    // 16: available
		func() { // 18: excluded for an hour, then not available
			f := newFault("node-registration", "Ready", finding.Warning)
			f.Subject.Kind, f.Reason = "node-condition", "NodeNotReady"
			w.store1(w.center(event.OperatorMaintenance, "n", fmt.Sprintf(`{"by":"ada","until":%q}`,
				w.now.Add(time.Hour).Format(time.RFC3339))), a.raise(f, 0))
		},
	} {
		w.pass(2 * time.Hour)
		next()
	}
	w.at(21, 0, 0)
	r := w.report(Daily, "2026-11-20")
	want := model.Time{Available: 8 * 3600 * seconds, Unavailable: 9 * 3600 * seconds, Unknown: 6 * 3600 * seconds,
		Maintenance: 3600 * seconds}
	if diff := cmp.Diff(want, r.Worst[0].Time); diff != "" {
		t.Error(diff)
	}
}

// Faults taken over or muted do not need people; a recurring fault does, unless it is still muted.
func TestPeople(t *testing.T) {
	w := newWorld(t, november(20, 1), time.UTC)
	a := w.agent("n")
	for i, name := range []string{"mine", "muted", "waits", "shown"} {
		severity := finding.Warning
		if name == "shown" {
			severity = finding.Info
		}
		w.pass(time.Duration(i) * time.Minute)
		w.store1(a.raise(newFault("disk", name, severity), 0))
	}
	say := func(t event.Type, name string, said event.Operator) {
		known, _ := w.model.Faults(func(f model.NodeFault) bool { return f.Subject.Name == name })
		said.By = "ada"
		e, err := model.OperatorEvent(t, known[0], said, w.now)
		w.must(err)
		w.store1(e)
	}
	say(event.OperatorAcknowledged, "mine", event.Operator{})
	say(event.OperatorMuted, "muted", event.Operator{Until: november(20, 20)})
	w.at(20, 12, 0)
	f := w.report(Daily, "").Faults
	if f.Open != 4 || f.NeedsPeople != 1 || f.Owned != 1 || f.Muted != 1 || f.Info != 1 {
		t.Errorf("%+v", f)
	}
	old, _ := w.model.Faults(func(f model.NodeFault) bool { return f.Subject.Name == "mine" })
	for _, name := range []string{"mine", "muted"} {
		w.store1(a.clear("disk" + name))
		w.pass(time.Minute)
		w.store1(a.raise(newFault("disk", name, finding.Warning), 0))
	}
	behind, err := model.OperatorEvent(event.OperatorAcknowledged, old[0], event.Operator{By: "bob"}, w.now)
	w.must(err)
	w.store1(behind) // for the earlier occurrence
	if f := w.report(Daily, "").Faults; f.NeedsPeople != 2 || f.Owned != 0 || f.Muted != 1 {
		t.Errorf("they came again: %+v", f)
	}
	w.at(20, 21, 0)
	if f := w.report(Daily, "").Faults; f.NeedsPeople != 3 || f.Muted != 0 {
		t.Errorf("no longer muted: %+v", f)
	}
}

// A report outlives its events, a lost or damaged file is computed again from the journal, and a damaged one of an earlier
// day is reported as missing, not treated as empty.
func TestTrimmedDays(t *testing.T) {
	w := newWorld(t, november(20, 12), time.UTC)
	a := w.agent("n")
	w.store1(a.raise(newFault("disk", "sda", finding.Fatal), 0))
	w.at(21, 12, 0)
	w.store1(a.raise(newFault("disk", "sdb", finding.Fatal), 0))
	var base bytes.Buffer // as of the trimmed journal's beginning
	_, err := w.model.Save(&base, w.store.Bounds().Journal)
	w.must(err)
	w.at(22, 12, 0)
	w.store1(a.clear("disksda"))
	first := w.report(Daily, "2026-11-20")
	w.at(23, 1, 0)
	w.must(w.keeper.Follow())
	w.must(w.store.Trim(w.Context(), w.store.Bounds().Newest))
	if w.store.Bounds().Oldest < 3 {
		t.Fatal("nothing is trimmed")
	}
	w.open()
	if diff := cmp.Diff(first, w.report(Daily, "2026-11-20")); diff != "" {
		t.Error(diff)
	}
	name := filepath.Join(w.dir, "reports", "2026-11-22.json.gz")
	w.must(os.Remove(name))
	w.open()
	if w.model.Before() <= w.keeper.Stored() {
		t.Error("the lost day is not noticed")
	}
	w.load(bytes.NewReader(base.Bytes()))
	if f := w.report(Daily, "2026-11-22").Faults; f.OpenBefore != 2 || f.Cleared != 1 || f.Open != 1 {
		t.Errorf("%+v", f)
	}
	text, err := os.ReadFile(name)
	w.must(err)
	text[len(text)/2] ^= 0xff
	w.must(os.WriteFile(name, text, 0o600))
	var log bytes.Buffer
	w.logged = &log
	w.load(bytes.NewReader(base.Bytes()))
	if f := w.report(Daily, "2026-11-22").Faults; f.OpenBefore != 2 || !strings.Contains(log.String(), "2026-11-22") {
		t.Errorf("%+v %s", f, &log)
	}
	w.at(23, 12, 0)
	w.must(os.WriteFile(filepath.Join(w.dir, "reports", "2026-11-21.json.gz"), text[:10], 0o600))
	if week := w.report(Weekly, "2026-11-22"); strings.Join(week.Missing[len(week.Missing)-1:], "") != "2026-11-21" || !week.Partial {
		t.Errorf("%+v", week.Missing)
	}
	w.must(os.Remove(name))
	var empty bytes.Buffer
	_, err = model.New().Save(&empty, w.store.Bounds().Journal)
	w.must(err)
	w.load(&empty)
	if r := w.report(Daily, "2026-11-21"); r.Lost != 1 {
		t.Errorf("%d lost events, without a checkpoint", r.Lost)
	}
}

// Days that are too old are removed.
func TestKeptDays(t *testing.T) {
	w := newWorld(t, november(20, 12), time.UTC)
	w.store1(w.agent("n").event(event.AgentStarted, finding.Info, event.Agent{}))
	w.now = w.now.AddDate(0, 0, keepDays+30)
	w.must(w.keeper.Follow())
	names, err := w.keeper.names()
	w.must(err)
	if len(names) < keepDays || len(names) > keepDays+2 || names[0] <= "2026-11-20" {
		t.Errorf("%d days from %s", len(names), names[0])
	}
}

// A new timezone takes effect with the next day; no day is counted twice, and none is lost.
func TestOtherTimezone(t *testing.T) {
	for _, zone := range []*time.Location{time.FixedZone("A", 14*3600), time.FixedZone("B", -11*3600)} {
		w := newWorld(t, november(20, 13), time.UTC)
		a := w.agent("n")
		w.store1(a.event(event.AgentStarted, finding.Info, event.Agent{}))
		w.must(w.keeper.Follow())
		w.zone = zone
		w.open()
		total := int64(0)
		for w.now.Before(november(23, 13)) {
			w.pass(time.Hour)
			w.store1(a.event(event.AgentStarted, finding.Info, event.Agent{}))
			w.must(w.keeper.Follow())
		}
		names, err := w.keeper.names()
		w.must(err)
		events := uint64(0)
		today := w.model.Today(w.now.Add(-behind))
		for _, name := range append(names, today.Name) {
			d, err := w.keeper.day(name, today)
			w.must(err)
			total += d.Nodes["c\x00n"].Time.Available
			events += d.Offset - d.Before
		}
		if total != 72*3600*seconds || events != 73 {
			t.Errorf("%s: %d h, %d events", zone, total/3600/seconds, events)
		}
	}
}
