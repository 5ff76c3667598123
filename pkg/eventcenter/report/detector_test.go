package report

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

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
		w.store1(journal.Event{Source: "/clusters/c/nodes/n/gpud", ID: fmt.Sprint(id), Type: string(kind), Cluster: "c", Node: "n",
			JSON: text})
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
	if diff := cmp.Diff(want, first.Faults); diff != "" || len(ends) != 1 {
		t.Errorf("%s, %d ends", diff, len(ends))
	}
	if len(first.NeedsPeople) != 1 || first.NeedsPeople[0].Detector != "gpud" || len(first.ByFault) != 2 ||
		first.ByFault[0].Detector+first.ByFault[1].Detector != "gpud" {
		t.Errorf("%+v %+v", first.NeedsPeople, first.ByFault)
	}
	html, err := first.Page()
	if err != nil || !strings.Contains(string(html), "disk/sda, by gpud") {
		t.Error("the document does not name the detector")
	}
	detect(event.FaultCleared, "sda", w.now)
	w.at(21, 1, 0)
	if f := w.report(Daily, "2026-11-21").Faults; f.OpenBefore != 1 || f.Cleared != 1 || f.Open != 0 {
		t.Errorf("%+v", f)
	}
}
