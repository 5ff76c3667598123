package report

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/sqlite"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// world is a journal with its model, as in a center, and a clock.
type world struct {
	testing.TB
	dir    string
	now    time.Time
	store  *sqlite.Store
	model  *model.Model
	keeper *Keeper
	zone   *time.Location
	places map[string]model.Place // of nodes
	logged io.Writer
}

func newWorld(t testing.TB, now time.Time, zone *time.Location) *world {
	w := &world{TB: t, dir: t.TempDir(), now: now, model: model.New(), zone: zone, places: map[string]model.Place{},
		logged: io.Discard}
	var err error
	w.store, err = sqlite.Open(t.Context(), sqlite.Options{Dir: filepath.Join(w.dir, "journal"), Log: w.log(),
		BallastBytes: 1 << 16, Now: func() time.Time { return w.now },
		Appended: func(records []journal.Record) []journal.Event { return w.model.Apply(records) }})
	w.must(err)
	t.Cleanup(func() { _ = w.store.Close() })
	w.open()
	return w
}

func (w *world) log() *slog.Logger { return slog.New(slog.NewTextHandler(w.logged, nil)) }

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// open saves the model and opens it and the reports again, as a center does when it stops and starts.
func (w *world) open() {
	w.Helper()
	saved := w.checkpoint(w.model)
	if w.keeper != nil {
		w.must(w.keeper.Store())
	}
	w.load(saved)
}

// checkpoint returns a checkpoint of a model.
func (w *world) checkpoint(m *model.Model) *bytes.Buffer {
	w.Helper()
	saved := new(bytes.Buffer)
	_, err := m.Save(saved, w.store.Bounds().Journal)
	w.must(err)
	return saved
}

// load opens a checkpoint and the reports, and applies the rest of the journal.
func (w *world) load(checkpoint io.Reader) {
	w.Helper()
	var err error
	w.model, err = model.Load(checkpoint, w.store.Bounds().Journal)
	w.must(err)
	w.model.Location = w.zone
	w.keeper, err = Open(Options{Dir: filepath.Join(w.dir, "reports"), Journal: w.store, Model: w.model, Log: w.log(),
		Now: func() time.Time { return w.now }})
	w.must(err)
	got, err := w.store.Read(w.Context(), journal.Query{After: w.model.Offset(), Limit: math.MaxInt32})
	w.must(err)
	w.model.Apply(got.Records)
}

// describe tells the model the places of the nodes that it knows, as the watch of their cluster does.
func (w *world) describe() {
	for name, p := range w.places {
		if _, _, known := w.model.Node(model.Key{Cluster: "c", Node: name}); known {
			w.model.Describe("c", map[string]model.Meta{name: {Pool: p.Pool, Zone: p.Zone}})
		}
	}
}

func (w *world) report(p Period, date string) Report {
	w.Helper()
	w.describe()
	r, err := w.keeper.Report(p, date)
	w.must(err)
	return r
}

func (w *world) pass(d time.Duration) { w.now = w.now.Add(d) }

// at sets the clock to a time of a day of November 2026, in the world's timezone.
func (w *world) at(day, hour, minute int) {
	w.now = time.Date(2026, 11, day, hour, minute, 0, 0, w.zone)
}

// agent is a node's agent with its outbox.
type agent struct {
	w        *world
	node     string
	start    int
	sequence uint64
	skew     time.Duration
	active   map[string]event.Fault
	left     map[string]event.Activity
	pods     uint64
	counts   bool
	sent     []journal.Event
}

func (w *world) agent(node string) *agent {
	a := &agent{w: w, node: node}
	a.restart()
	return a
}

func (a *agent) restart() {
	a.start++
	a.sequence, a.active, a.left, a.pods = 0, map[string]event.Fault{}, map[string]event.Activity{}, 0
}

func (a *agent) stream(kind string) string { return fmt.Sprintf("01J%023d", a.start*10)[:25] + kind }

// event returns the next event of the agent.
func (a *agent) event(t event.Type, severity finding.Severity, data any) journal.Event {
	a.sequence++
	stream := a.stream("A")
	if t == event.NodeSnapshot {
		stream = a.stream("B")
	}
	e := event.Event{Type: t, Cluster: "c", Node: a.node, Time: a.clock(), Severity: severity, Stream: stream,
		Sequence: a.sequence, Data: data}
	switch d := data.(type) {
	case event.Fault:
		e.Subject = event.Subject{Check: d.Check, Reason: d.Reason, Kind: d.Subject.Kind, Name: d.Subject.Name}
	case event.Activity:
		e.Subject = event.Subject{Check: d.Check, Reason: "X", Kind: d.Subject.Kind, Name: d.Subject.Name}
	}
	j, err := journaltest.Encoded(e)
	a.w.must(err)
	if a.sequence%2 == 0 { // like an event received by HTTP; the other half is read from the journal
		said, err := event.Decode(j.JSON)
		a.w.must(err)
		j.Decoded = &said
	}
	a.sent = append(a.sent, j)
	return j
}

// clock returns the node's own time, which may be wrong.
func (a *agent) clock() time.Time { return a.w.now.Add(a.skew).UTC() }

func (w *world) store1(events ...journal.Event) {
	w.Helper()
	_, err := w.store.Append(w.Context(), events)
	w.must(err)
	w.describe()
}

func newFault(check, name string, severity finding.Severity) event.Fault {
	return event.Fault{ID: check + name, Check: check, Subject: finding.Subject{Kind: "disk", Name: name},
		Severity: severity, Reason: "Fails", Message: name + " fails"}
}

func (a *agent) raise(f event.Fault, found time.Duration) journal.Event {
	f.RaisedAt, f.ObservedAt = a.clock(), a.clock().Add(-found)
	if !f.OneShot {
		a.active[f.Check+f.Subject.Name] = f
	}
	return a.event(event.FaultRaised, f.Severity, f)
}

func (a *agent) clear(key string) journal.Event {
	f := a.active[key]
	delete(a.active, key)
	return a.event(event.FaultCleared, f.Severity, f)
}

func (a *agent) leftover(t event.Type, kind, name string) journal.Event {
	l := event.Activity{ID: name, Check: "leftovers", Kind: finding.LeftoverFound, FoundAt: a.clock(),
		Subject: finding.Subject{Kind: kind, Name: name}, Pod: finding.Subject{Kind: "pod", Name: "ns/p"}}
	if t == event.LeftoverFound {
		a.left[name] = l
	} else {
		delete(a.left, name)
	}
	return a.event(t, finding.Info, l)
}

func (a *agent) action(f event.Fault) journal.Event {
	return a.event(event.ActionSucceeded, finding.Info, event.Activity{ID: "a", Check: f.Check, Subject: f.Subject,
		Kind: finding.ActionVerified, Pod: f.Subject})
}

// snapshot lists everything active as of the last event.
func (a *agent) snapshot() journal.Event {
	s := event.Snapshot{AsOf: event.Sequence(a.sequence), Of: a.stream("A"), Part: 1, End: true, Faults: []event.Fault{},
		Leftovers: []event.Activity{}}
	for _, key := range slices.Sorted(maps.Keys(a.active)) {
		s.Faults = append(s.Faults, a.active[key])
	}
	for _, key := range slices.Sorted(maps.Keys(a.left)) {
		s.Leftovers = append(s.Leftovers, a.left[key])
	}
	if a.counts {
		pods := a.pods
		s.PodsEnded = &pods
	}
	return a.event(event.NodeSnapshot, finding.Info, s)
}

// started returns the event of the agent's start.
func (a *agent) started() journal.Event {
	return a.event(event.AgentStarted, finding.Info, event.Agent{})
}

// center returns an event from the center itself.
func (w *world) center(t event.Type, node string, data any) journal.Event {
	id := fmt.Sprintf("own-%d", rand.Uint64())
	text := fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/clusters/c/eventcenter","type":%q,"time":%q,"data":%s}`,
		id, t, w.now.UTC().Format(time.RFC3339Nano), data)
	return journal.Event{Source: "/clusters/c/eventcenter", ID: id, Type: string(t), Cluster: "c", Node: node,
		Severity: "info", JSON: []byte(text)}
}

func TestMain(m *testing.M) {
	time.Local = time.UTC
	os.Exit(m.Run())
}
