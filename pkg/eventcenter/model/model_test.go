package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/expecttest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	streamA = "01J9AAAAAAAAAAAAAAAAAAAAAA"
	streamB = "01J9BBBBBBBBBBBBBBBBBBBBBB"
)

// feed applies events to a model as the center does: derived events are appended, and applied too.
type feed struct {
	t       testing.TB
	m       *Model
	now     time.Time
	records []journal.Record
}

func newFeed(t testing.TB) *feed { return &feed{t: t, m: New(), now: minute(0)} }

func (f *feed) append(events ...journal.Event) {
	f.t.Helper()
	for len(events) > 0 {
		var records []journal.Record
		for _, e := range events {
			records = append(records, journal.Record{Offset: uint64(len(f.records) + 1), Received: f.now, Event: e})
			f.records = append(f.records, records[len(records)-1])
		}
		events = f.m.Apply(records)
	}
}

// of returns an event of node "n" in a stream.
func of(stream string, sequence uint64, t event.Type, data any) journal.Event {
	e, err := journaltest.Encoded(event.Event{Type: t, Cluster: "c", Node: "n", Time: time.Unix(1, 0).UTC(),
		Severity: finding.Info, Stream: stream, Sequence: sequence, Data: data})
	if err != nil {
		panic(err)
	}
	return e
}

func fault(name string) event.Fault {
	return event.Fault{ID: name, Check: "disk", Subject: finding.Subject{Kind: "disk", Name: name},
		Severity: finding.Fatal, Reason: "Fails"}
}

func oneShot(name string) event.Fault {
	f := fault(name)
	f.OneShot = true
	return f
}

func leftover(name string) event.Activity {
	return event.Activity{ID: name, Check: "leftovers", Kind: finding.LeftoverFound,
		Subject: finding.Subject{Kind: "mount", Name: name}}
}

func raise(sequence uint64, name string) journal.Event {
	return of(streamA, sequence, event.FaultRaised, fault(name))
}

func clearing(sequence uint64, name string) journal.Event {
	return of(streamA, sequence, event.FaultCleared, fault(name))
}

// listing returns a snapshot with named faults.
func listing(stream string, sequence, asOf uint64, s event.Snapshot, names ...string) journal.Event {
	s.AsOf = event.Sequence(asOf)
	for _, name := range names {
		s.Faults = append(s.Faults, fault(name))
	}
	return of(stream, sequence, event.NodeSnapshot, s)
}

func snapshotOf(stream string, sequence, asOf uint64, faults ...string) journal.Event {
	return listing(stream, sequence, asOf, event.Snapshot{Part: 1, End: true}, faults...)
}

// expect compares the present state, names of faults and leftovers, and the events that the center has added.
func (f *feed) expect(what, active, inferred string) {
	f.t.Helper()
	d, _, _ := f.m.Node(Key{"c", "n"})
	var names []string
	for _, fault := range d.Faults {
		names = append(names, fault.Subject.Name)
	}
	for _, l := range d.LeftoverList {
		names = append(names, l.Subject.Name)
	}
	expecttest.Equal(f.t, what+": active", active, strings.Join(names, " "))
	expecttest.Equal(f.t, what+": inferred", inferred, f.inferred())
}

// inferred returns the events that the center has added: +name and -name.
func (f *feed) inferred() string {
	var names []string
	for _, r := range f.records {
		var e struct {
			Inferred bool
			Type     event.Type
			Data     struct{ Subject finding.Subject }
		}
		if r.Stream == "" && json.Unmarshal(r.JSON, &e) == nil && e.Inferred {
			sign := "-"
			if e.Type == event.FaultRaised || e.Type == event.LeftoverFound {
				sign = "+"
			}
			names = append(names, sign+e.Data.Subject.Name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func TestState(t *testing.T) {
	first := snapshotOf(streamA, 5, 4, "a")
	part := func(sequence uint64, number int, end bool, name string) journal.Event {
		return listing(streamA, sequence, 4, event.Snapshot{Part: number, End: end}, name)
	}
	apart := func(asOf uint64, stream string, unknown []string, names ...string) journal.Event { // in a stream of its own
		s := event.Snapshot{Of: stream, Part: 1, End: true, Unknown: unknown}
		return listing("01J9CCCCCCCCCCCCCCCCCCCCCC", 1, asOf, s, names...)
	}
	type events = []journal.Event
	for _, test := range []struct {
		name             string
		events           []journal.Event
		active, inferred string
	}{
		{"raised and cleared", events{raise(1, "a"), raise(2, "b"), clearing(3, "a")}, "b", ""},
		{"over at once", events{of(streamA, 1, event.FaultRaised, oneShot("a"))}, "", ""},
		{"cleared arrives first", events{clearing(2, "a"), raise(1, "a")}, "", ""},
		{"leftovers", events{of(streamA, 1, event.LeftoverFound, leftover("m")),
			of(streamA, 2, event.LeftoverFound, leftover("o")), of(streamA, 3, event.LeftoverGone, leftover("m"))}, "o", ""},
		{"a snapshot that agrees", events{raise(4, "a"), first}, "a", ""},
		{"a raised that was lost", events{first}, "a", "+a"},
		{"a cleared that was lost", events{raise(1, "a"), raise(2, "b"), first}, "a", "-b"},
		{"leftovers in a snapshot", events{of(streamA, 1, event.LeftoverFound, leftover("m")), first}, "a", "+a -m"},
		{"late events are history", events{first, raise(1, "b"), clearing(3, "a")}, "a", "+a"},
		{"events after a snapshot", events{first, clearing(6, "a"), raise(7, "b")}, "b", "+a"},
		{"what is newer than a snapshot stays", events{raise(6, "b"), first}, "a b", "+a"},
		{"an older snapshot", events{first, snapshotOf(streamA, 3, 2, "b")}, "a", "+a"},
		{"in parts", events{part(5, 1, false, "a"), part(6, 2, true, "b")}, "a b", "+a +b"},
		{"in parts, the last first", events{part(6, 2, true, "b"), part(5, 1, false, "a")}, "a b", "+a +b"},
		{"a part is missing", events{raise(1, "c"), part(6, 2, true, "b")}, "c", ""},
		{"the node was set up again", events{raise(7, "a"), of(streamB, 1, event.FaultRaised, fault("b")),
			snapshotOf(streamB, 2, 1, "b")}, "b", "-a"},
		{"a snapshot in a stream of its own", events{raise(1, "a"), raise(2, "b"), apart(1, streamA, nil, "c"),
			clearing(3, "c"), raise(4, "d")}, "b d", "+c -a"},
		{"of a restarted agent that knows nothing yet", events{raise(1, "a"), apart(0, streamB, []string{"disk"}),
			clearing(2, "a")}, "a", ""},
		{"and then knows", events{raise(1, "a"), apart(0, streamB, []string{"disk"}),
			of(streamB, 1, event.FaultCleared, fault("a"))}, "", ""},
		{"what an earlier start has left comes later", events{of(streamB, 1, event.FaultRaised, fault("b")),
			raise(1, "a"), of(streamB, 2, event.FaultCleared, fault("b"))}, "", ""},
		{"the old outbox sends again", events{snapshotOf(streamB, 1, 0, "b"), snapshotOf(streamA, 1, 0, "a"),
			of(streamB, 9, event.FaultCleared, fault("b")), of(streamB, 10, event.FaultRaised, fault("b"))}, "a", "+a +b -b"},
	} {
		f := newFeed(t)
		for _, e := range test.events {
			f.append(e)
		}
		f.expect(test.name, test.active, test.inferred)
	}
}

// A later event in the same transaction wins over inferences from its snapshot.
func TestInferredInOneTransaction(t *testing.T) {
	f := newFeed(t)
	f.append(raise(1, "a"))
	f.append(snapshotOf(streamA, 3, 2), raise(4, "a"))
	f.expect("the later event", "a", "")
}

// A center killed between a snapshot and its inferred events creates the same events at its next start.
func TestInferredAfterKill(t *testing.T) {
	f := newFeed(t)
	f.append(raise(1, "a"), raise(2, "b"))
	f.append(snapshotOf(streamA, 3, 2, "c"))
	f.expect("inferred", "c", "+c -a -b")
	again := New()
	var want []journal.Event
	for _, r := range f.records[3:] {
		want = append(want, r.Event)
	}
	expecttest.Equal(t, "inferred again", want, again.Apply(f.records[:3]))
	if more := again.Apply(f.records[3:]); len(more) > 0 {
		t.Errorf("made twice: %+v", more)
	}
}

// In all cases, a checkpoint at any moment and the rest of the journal yield the same state as the whole journal, and
// with the inferred events a reader of the journal reaches that state too.
func TestRebuild(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := newFeed(t)
		var saved bytes.Buffer
		sequence := map[string]uint64{}
		steps := rapid.IntRange(2, 40).Draw(rt, "steps")
		for i := range steps {
			f.now = minute(i * 5)
			stream := rapid.SampledFrom([]string{streamA, streamA, streamA, streamB}).Draw(rt, "stream")
			name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "name")
			back := rapid.SampledFrom([]uint64{0, 0, 0, 1, 3}).Draw(rt, "back")
			sequence[stream]++
			now := max(1, sequence[stream]-min(back, sequence[stream]))
			switch kind := rapid.IntRange(0, 7).Draw(rt, "kind"); kind {
			case 0, 1:
				f.append(of(stream, now, event.FaultRaised, fault(name)))
			case 2:
				f.append(of(stream, now, event.FaultCleared, fault(name)))
			case 3:
				f.append(of(stream, now, event.LeftoverFound, leftover(name)))
			case 4:
				f.append(snapshotOf(stream, now, now-1, name))
			case 5, 6:
				said := i*5 - rapid.IntRange(-3, 20).Draw(rt, "late")
				f.received(detected("gpud", name, []event.Type{event.FaultRaised, event.FaultCleared}[kind-5], said, i*5))
			case 7:
				f.append(f.m.Expired(minute(i*5), time.Time{})...)
			}
			if i == (steps-1)/2 {
				if _, err := f.m.Save(&saved, "j"); err != nil {
					rt.Fatal(err)
				}
			}
		}
		rebuilt := New()
		if extra := rebuilt.Apply(f.records); len(extra) > 0 {
			rt.Fatalf("more follows: %+v", extra)
		}
		restarted, err := Load(&saved, "j")
		if err != nil {
			rt.Fatal(err)
		}
		again := rapid.Uint64Range(0, 20).Draw(rt, "again") // a node may be newer than its checkpoint
		restarted.Apply(slices.DeleteFunc(slices.Clone(f.records), func(r journal.Record) bool {
			return r.Offset+again <= restarted.Offset()
		}))
		for name, m := range map[string]*Model{"rebuilt": rebuilt, "restarted": restarted} {
			if diff := Compare(f.m, m); len(diff) > 0 {
				rt.Fatalf("%s: %+v", name, diff)
			}
			if diff := cmp.Diff(f.m.Today(minute(steps*5)), m.Today(minute(steps*5)), cmpopts.EquateEmpty()); diff != "" {
				rt.Fatalf("%s: %s", name, diff)
			}
		}
	})
}

// One node cannot fill the memory.
func TestBounds(t *testing.T) {
	f := newFeed(t)
	for i := range uint64(maxActive + 10) {
		f.append(raise(i+1, fmt.Sprint(i)))
	}
	if c := f.m.Counts(); c.Faults[finding.Fatal] != maxActive || c.Dropped != 10 {
		t.Errorf("%+v", c)
	}
}
