package model

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/expecttest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// detected is a record of a detector's fault, with the minutes of the report and of its receipt.
func detected(detector, name string, t event.Type, said, received int) journal.Record {
	e := journal.Event{Source: "/clusters/c/nodes/n/" + detector, ID: fmt.Sprint(detector, name, t, said, "-", received), Type: string(t),
		Cluster: "c", Node: "n"}
	e.JSON = fmt.Appendf(nil, `{"time":%q,"data":{"check":"disk","reason":"Fails","severity":"fatal","ttlSeconds":600,
		"subject":{"kind":"disk","name":%q}}}`, minute(said).Format(time.RFC3339), name)
	return journal.Record{Received: minute(received), Event: e}
}

func minute(n int) time.Time { return time.Unix(1e9, 0).UTC().Add(time.Duration(n) * time.Minute) }

func (f *feed) received(records ...journal.Record) {
	f.t.Helper()
	for _, r := range records {
		r.Offset = uint64(len(f.records) + 1)
		f.records, f.now = append(f.records, r), r.Received
		f.append(f.m.Apply([]journal.Record{r})...)
	}
}

// A detector's fault ends by the center's clock unless it is reported again in time; the end is created only once.
func TestExpired(t *testing.T) {
	f := newFeed(t)
	f.received(detected("gpud", "a", event.FaultRaised, 0, 100), detected("gpud", "b", event.FaultRaised, 500, 101),
		detected("gpud", "a", event.FaultUpdated, 5, 105))
	if ends := f.m.Expired(minute(110), time.Time{}); len(ends) != 0 {
		t.Errorf("too early: %s", ends[0].JSON)
	}
	ends := f.m.Expired(minute(112), time.Time{})
	if len(ends) != 1 || !strings.Contains(string(ends[0].JSON), `"detector":"gpud"`) || ends[0].ID != f.m.Expired(minute(113), time.Time{})[0].ID {
		t.Fatalf("%+v", ends)
	}
	f.append(ends...)
	f.expect("ended", "a", "-b")
	if len(f.m.Expired(minute(112), time.Time{})) != 0 {
		t.Error("the end is created twice")
	}
	// A report from a clock that is ahead counts from its receipt: a later report is not late.
	f.received(detected("gpud", "b", event.FaultRaised, 102, 113), detected("gpud", "b", event.FaultCleared, 114, 114))
	f.expect("a later report", "a", "-b")
	// If a report arrives before an end computed earlier, the fault is active, and subscribers get an event for it.
	ends = f.m.Expired(minute(115), time.Time{})
	f.received(detected("gpud", "a", event.FaultUpdated, 115, 115))
	f.append(ends...)
	f.expect("a report in time", "a", "+a -a -b")
}

// One detector can neither fill the memory nor use another's or the agent's share.
func TestDetectorBounds(t *testing.T) {
	f := newFeed(t)
	for i := range maxOfDetector + 10 {
		f.received(detected("gpud", fmt.Sprint(i), event.FaultRaised, 1, 1))
	}
	f.received(detected("bmc", "x", event.FaultRaised, 1, 1))
	f.append(raise(1, "x"))
	if c := f.m.Counts(); c.Dropped != 10 || c.Faults["fatal"] != maxOfDetector+2 {
		t.Errorf("%+v", c)
	}
	f.received(detected("gpud", "0", event.FaultCleared, 2, 2), detected("gpud", "more", event.FaultRaised, 2, 2))
	if c := f.m.Counts(); c.Dropped != 10 || c.Faults["fatal"] != maxOfDetector+2 {
		t.Errorf("an end makes no room: %+v", c)
	}
	for i := range maxDetectors + 5 {
		f.received(detected(fmt.Sprint("d", i), "y", event.FaultRaised, 3, 3))
	}
	if n := len(f.m.nodes[Key{"c", "n"}].Foreign); n != maxDetectors {
		t.Errorf("%d detectors", n)
	}
}

// The removal of the Node ends the detectors' faults, each end with the detector's name.
func TestRemovalEndsDetected(t *testing.T) {
	f := newFeed(t)
	f.received(detected("gpud", "a", event.FaultRaised, 1, 1))
	removed, err := Own{Cluster: "c", Node: "n", ID: "r", Type: event.NodeRemoved, Time: minute(2), Data: event.Silence{}}.Event()
	expecttest.OK(t, err)
	f.append(removed)
	f.expect("removed", "", "-a")
	expecttest.Has(t, "the end", string(f.records[len(f.records)-1].JSON), `"detector":"gpud"`)
}
