package model

import (
	"fmt"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/expecttest"
)

// The open faults of a node's day are limited, whatever its agent claims: a one-shot fault is not open.
func TestOpenBounds(t *testing.T) {
	f := newFeed(t)
	for i := range uint64(3) {
		f.append(raise(4*i+1, fmt.Sprint(i)))
		f.append(of(streamA, 4*i+2, event.FaultUpdated, oneShot(fmt.Sprint(i))))
		f.append(snapshotOf(streamA, 4*i+3, 4*i+2))
	}
	d := f.m.nodes[Key{"c", "n"}].Day
	if c := d.Faults["disk\x00Fails\x00fatal"]; len(d.Open) != 0 || c == nil || *c != (Outcomes{Found: 3, Cleared: 3}) {
		t.Errorf("%d open, %+v", len(d.Open), c)
	}
	for i := range maxOpen + 1 {
		d.change(event.FaultRaised, fault(fmt.Sprint("more", i)), f.now)
	}
	if c := d.Faults["disk\x00Fails\x00fatal"]; len(d.Open) != maxOpen || c.Late != 1 || c.Found != maxOpen+4 {
		t.Errorf("%d open, %+v", len(d.Open), c)
	}
}

// Each replay counts the same faults under Other.
func TestNamesOverTheLimit(t *testing.T) {
	f := newFeed(t)
	s := event.Snapshot{Part: 1, End: true}
	for i := range maxNames + 50 {
		one := fault(fmt.Sprint(i))
		one.Reason = fmt.Sprint("Fails", i)
		s.Faults = append(s.Faults, one)
	}
	f.append(listing(streamA, 2, 1, s))
	again := New()
	again.Apply(f.records)
	expecttest.Equal(t, "the day", f.m.Today(f.now), again.Today(f.now))
	if diff := Compare(f.m, again); len(diff) > 0 {
		t.Errorf("%d differences", len(diff))
	}
	again.nodes[Key{"c", "n"}].Day.Faults[Other].Found++
	if len(Compare(f.m, again)) != 1 {
		t.Error("a wrong count is no difference")
	}
}

// A checkpoint of an older version has no counts. Without a stored day, too, the time before the first event is
// unknown, and the events before it are named as not counted.
func TestOldCheckpoint(t *testing.T) {
	f := newFeed(t)
	f.append(of(streamA, 1, event.AgentStarted, event.Agent{}), of(streamA, 2, event.LeftoverFound, leftover("a")))
	f.m.day, f.m.nodes[Key{"c", "n"}].Day = nil, nil
	f.now = minute(60)
	f.append(of(streamA, 3, event.LeftoverFound, leftover("b")))
	d := f.m.Today(minute(90))
	if n := d.Nodes["c\x00n"]; n.Time != (Time{Available: 30 * 60 * 1000}) || d.Lost != 2 || n.Joined != 0 {
		t.Errorf("%+v, %d lost", n.Time, d.Lost)
	}
}

type writer func()

func (w writer) Write(p []byte) (int, error) {
	w()
	return len(p), nil
}

// A checkpoint during which a day ends would have the counts of two days: it fails, and the next one does not.
func TestSaveOverMidnight(t *testing.T) {
	f := newFeed(t)
	f.append(raise(1, "a"))
	for i := range 100 { // more than the buffer of Save
		f.m.RecordAlive(Key{"c", fmt.Sprint(i)}, event.Agent{}, f.now, f.now)
	}
	ends := 0
	f.m.Finished = func(*Day) { ends++ }
	for _, want := range []int{0, 1} {
		_, err := f.m.Save(writer(func() { f.m.Advance(f.now.AddDate(0, 0, want)) }), "j")
		if (err != nil) != (want == 1) || ends != want {
			t.Errorf("%d days end, %d expected: %v", ends, want, err)
		}
	}
	_, err := f.m.Save(writer(func() {}), "j")
	expecttest.OK(t, err)
}

// The timezone determines the length of a day: 23 and 25 hours when clocks change, also if they change at midnight.
func TestDaylightSaving(t *testing.T) {
	for _, one := range []struct {
		zone, name string
		hours      float64
		from       string
	}{
		{"Europe/Berlin", "2026-03-29", 23, "2026-03-28T23:00:00Z"}, {"Europe/Berlin", "2026-10-25", 25, "2026-10-24T22:00:00Z"},
		{"Europe/Berlin", "2026-10-26", 24, "2026-10-25T23:00:00Z"}, {"America/Sao_Paulo", "2018-11-04", 23, "2018-11-04T03:00:00Z"},
		{"America/Sao_Paulo", "2018-02-17", 25, "2018-02-17T02:00:00Z"}, {"Australia/Lord_Howe", "2026-10-04", 23.5, "2026-10-03T13:30:00Z"},
	} {
		zone, err := time.LoadLocation(one.zone)
		expecttest.OK(t, err)
		begin, err := time.Parse(time.RFC3339, one.from)
		expecttest.OK(t, err)
		for _, after := range []time.Duration{0, time.Hour, 12 * time.Hour, 22*time.Hour + 59*time.Minute} {
			name, from, to := dayOf(begin.Add(after), zone)
			if name != one.name || !from.Equal(begin) || to.Sub(from).Hours() != one.hours {
				t.Errorf("%s %s: %s from %s, %.1f h", one.zone, one.name, name, from, to.Sub(from).Hours())
			}
		}
		if name, _, to := dayOf(begin.Add(-time.Second), zone); name >= one.name || !to.Equal(begin) {
			t.Errorf("%s %s: the day before is %s to %s", one.zone, one.name, name, to)
		}
	}
}
