package report

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/expecttest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
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
	w.store1(a.started())
	w.at(20, 18, 0)
	w.store1(a.raise(newFault("disk", "sda", finding.Fatal), 10*time.Second))
	w.at(23, 6, 0)
	w.store1(a.clear("disksda"))
	w.at(24, 12, 0)
	type day struct {
		Before, Found, Cleared, Open int
		Unavailable                  float64
		Partial                      bool
	}
	for name, want := range map[string]day{
		"2026-11-20": {0, 1, 0, 1, 6.0 / 18, false},
		"2026-11-21": {1, 0, 0, 1, 1, false},
		"2026-11-22": {1, 0, 0, 1, 1, false},
		"2026-11-23": {1, 0, 1, 0, 6.0 / 24, false},
		"2026-11-24": {0, 0, 0, 0, 0, true},
	} {
		r := w.report(Daily, name)
		f := r.Faults
		expecttest.Equal(t, name, want, day{f.OpenBefore, f.Found, f.Cleared, f.Open, r.Availability.Unavailable, r.Partial})
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
	expecttest.OK(t, err)
	w := newWorld(t, time.Date(2026, 10, 24, 12, 0, 0, 0, berlin), berlin)
	w.store1(w.agent("n").raise(newFault("disk", "sda", finding.Fatal), 0))
	w.now = time.Date(2026, 10, 26, 12, 0, 0, 0, berlin)
	r := w.report(Daily, "2026-10-25")
	expecttest.Equal(t, "unavailable", 25*3600*seconds, r.Worst[0].Time.Unavailable)
	expecttest.Equal(t, "timezone", "Europe/Berlin", r.Timezone)
}

// A node counts from its start to its removal; a later node with its name is a different one.
func TestJoinsAndGoes(t *testing.T) {
	w := newWorld(t, november(20, 12), time.UTC)
	old, other := w.agent("n"), w.agent("m")
	w.store1(old.started(), other.started())
	w.at(20, 14, 0)
	w.store1(old.raise(newFault("disk", "sda", finding.Fatal), 0))
	w.at(20, 15, 0)
	w.store1(w.center(event.NodeRemoved, "n", `{"reason":"NodeReplaced"}`))
	w.at(20, 20, 0)
	fresh := w.agent("n")
	fresh.restart()
	w.store1(fresh.started())
	w.at(21, 0, 1)
	r := w.report(Daily, "2026-11-20")
	a := r.Availability
	if want := (model.Time{Available: 6 * 3600 * seconds, Unavailable: 3600 * seconds}); len(r.Worst) != 1 || r.Worst[0].Time != want {
		t.Errorf("%+v", r.Worst)
	}
	if math.Abs(a.Available-(1+6.0/7)/2) > 1e-9 || a.Nodes != 2 || a.Joined != 3 || a.Removed != 1 {
		t.Errorf("%+v", a)
	}
	expecttest.Equal(t, "faults", Faults{Outcomes: model.Outcomes{Found: 1, Removed: 1}}, r.Faults)
	expecttest.Equal(t, "time to clear", 0, r.Clear.Count)
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
	w.store1(w.agent("n").started())
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
	w.store1(a.started())
	silent := func(kind event.Type, node, more string) func() {
		const data = `{"reason":"x","message":"","since":"2026-11-01T00:00:00Z"`
		return func() { w.store1(w.center(kind, node, data+more+"}")) }
	}
	for _, next := range []func(){
		silent(event.NodeBlind, "n", ""),                                               // 2: unknown
		silent(event.NodeBlind, "n", `,"ready":"False"`),                               // 4: not available
		silent(event.NodeLost, "n", ""),                                                // 6: not available
		silent(event.NodeSeen, "n", ""),                                                // 8: available
		silent(event.ClusterSilent, "", ""),                                            // 10: unknown
		silent(event.ClusterSeen, "", ""),                                              // 12: available
		func() { w.store1(a.event(event.AgentStopping, finding.Info, event.Agent{})) }, // 14: unknown
		func() { a.restart(); w.store1(a.started()) },                                  // 16: available
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
	expecttest.Equal(t, "times", want, r.Worst[0].Time)
}

// Faults taken over or muted do not need people; a recurring fault does, unless it is still muted.
func TestPeople(t *testing.T) {
	w := newWorld(t, november(20, 1), time.UTC)
	a := w.agent("n")
	for _, name := range []string{"mine", "muted", "waits"} {
		w.store1(a.raise(newFault("disk", name, finding.Warning), 0))
	}
	w.store1(a.raise(newFault("disk", "shown", finding.Info), 0))
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
	want := Faults{Outcomes: model.Outcomes{Found: 4}, Open: 4, NeedsPeople: 1, Owned: 1, Muted: 1, Info: 1}
	expecttest.Equal(t, "noted", want, w.report(Daily, "").Faults)
	old, _ := w.model.Faults(func(f model.NodeFault) bool { return f.Subject.Name == "mine" })
	for _, name := range []string{"mine", "muted"} {
		w.store1(a.clear("disk" + name))
		w.pass(time.Minute)
		w.store1(a.raise(newFault("disk", name, finding.Warning), 0))
	}
	behind, err := model.OperatorEvent(event.OperatorAcknowledged, old[0], event.Operator{By: "bob"}, w.now)
	w.must(err)
	w.store1(behind) // for the earlier occurrence
	want.Found, want.Cleared, want.NeedsPeople, want.Owned = 6, 2, 2, 0
	expecttest.Equal(t, "they came again", want, w.report(Daily, "").Faults)
	w.at(20, 21, 0)
	want.NeedsPeople, want.Muted = 3, 0
	expecttest.Equal(t, "no longer muted", want, w.report(Daily, "").Faults)
}

// A detector's faults count in addition to the agent's, under its name: the agent's snapshot does not end them, their
// own end or the time to live does, and a late event about them has no effect.
func TestDetectorInReport(t *testing.T) {
	w := newWorld(t, november(20, 6), time.UTC)
	a := w.agent("n")
	id := 0
	detect := func(kind event.Type, name string, said time.Time) {
		t.Helper()
		id++
		text := fmt.Appendf(nil, `{"time":%q,"data":{"check":"disk","reason":"Fails","severity":"fatal",
			"subject":{"kind":"disk","name":%q}}}`, said.Format(time.RFC3339), name)
		w.store1(journal.Event{Source: "/clusters/c/nodes/n/gpud", ID: fmt.Sprint(id), Type: string(kind), Cluster: "c",
			Node: "n", JSON: text})
	}
	w.store1(a.raise(newFault("disk", "sda", finding.Fatal), 0))
	detect(event.FaultRaised, "sda", w.now)
	detect(event.FaultRaised, "sdb", w.now)
	w.at(20, 23, 50)
	detect(event.FaultUpdated, "sda", w.now)
	w.store1(a.clear("disksda"), a.snapshot())
	ends := w.model.Expired(w.now, time.Time{})
	w.store1(ends...) // of sdb
	w.at(21, 0, 10)
	detect(event.FaultCleared, "sdb", november(20, 7)) // late
	detect(event.FaultRaised, "sdb", november(20, 5))  // later still
	first := w.report(Daily, "2026-11-20")
	want := Faults{Outcomes: model.Outcomes{Found: 3, Cleared: 2}, Open: 1, NeedsPeople: 1}
	expecttest.Equal(t, "faults", want, first.Faults)
	expecttest.Equal(t, "ends by the time to live", 1, len(ends))
	if len(first.NeedsPeople) != 1 || first.NeedsPeople[0].Detector != "gpud" || len(first.ByFault) != 2 ||
		first.ByFault[0].Detector+first.ByFault[1].Detector != "gpud" {
		t.Errorf("%+v %+v", first.NeedsPeople, first.ByFault)
	}
	html, err := first.Page()
	w.must(err)
	expecttest.Has(t, "the document", string(html), "disk/sda, by gpud")
	detect(event.FaultCleared, "sda", w.now)
	w.at(21, 1, 0)
	want = Faults{OpenBefore: 1, Outcomes: model.Outcomes{Found: 1, Late: 1, Cleared: 1}}
	expecttest.Equal(t, "faults", want, w.report(Daily, "2026-11-21").Faults)
}
