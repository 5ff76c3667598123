package silence_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/event/schemas/schematest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/silence"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// cluster is a cluster in which all kubelets renew their Leases.
type cluster struct {
	mu     sync.Mutex // guards the fields below
	nodes  map[string]silence.Node
	behind map[string]string // missing in the watch: Nodes that a GET returns, by UID
	dead   map[string]time.Time
	away   bool
}

func (c *cluster) Nodes() (map[string]silence.Node, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.nodes), true
}

func (c *cluster) Leases(context.Context) (map[string]time.Time, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	leases := map[string]time.Time{}
	for name := range c.nodes {
		leases[name] = time.Now()
		if at, ok := c.dead[name]; ok {
			leases[name] = at
		}
	}
	if c.away {
		return nil, errors.New("connection refused")
	}
	return leases, nil
}

func (c *cluster) Ask(_ context.Context, name string) (uid, ready string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away {
		return "", "", errors.New("connection refused")
	}
	if uid := c.behind[name]; uid != "" {
		return uid, "True", nil
	}
	return c.nodes[name].UID, "Unknown", nil
}

// memory is a journal that stores an event once, and updates the model as the center does.
type memory struct {
	model   *model.Model
	mu      sync.Mutex // guards the fields below
	records []journal.Record
	full    bool
}

func (m *memory) Append(_ context.Context, events []journal.Event) (journal.Appended, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.full {
		return journal.Appended{}, journal.ErrFull
	}
	for len(events) > 0 {
		var records []journal.Record
		for _, e := range events {
			if !m.has(e) {
				r := journal.Record{Offset: uint64(len(m.records) + 1), Received: time.Now(), Event: e}
				m.records, records = append(m.records, r), append(records, r)
			}
		}
		events = m.model.Apply(records)
	}
	return journal.Appended{}, nil
}

func (m *memory) has(e journal.Event) bool {
	return slices.ContainsFunc(m.records, func(r journal.Record) bool { return r.Source == e.Source && r.ID == e.ID })
}

// take returns the events stored since the last call, as "NODE TYPE REASON".
func (m *memory) take(from *int) (lines []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.records[*from:] {
		if err := schematest.Problem(r.JSON); err != nil && strings.HasSuffix(r.Source, "/eventcenter") {
			lines = append(lines, err.Error())
		}
		t := strings.TrimSuffix(strings.TrimPrefix(r.Type, "io.github.nodeagent."), ".v1")
		lines = append(lines, strings.Join(strings.Fields(fmt.Sprint(r.Node, " ", t, " ", r.Reason)), " "))
	}
	*from = len(m.records)
	return lines
}

// raise is the event of a fault that a node's agent finds.
func raise(t *testing.T, node string, sequence uint64) journal.Event {
	t.Helper()
	f := event.Fault{ID: "x", Check: "disk", Subject: finding.Subject{Kind: "disk", Name: "sda"}, Severity: finding.Fatal,
		Reason: "Fails"}
	e := event.Event{Type: event.FaultRaised, Cluster: "c", Node: node, Time: time.Now(), Severity: finding.Fatal,
		Stream: "01J9AAAAAAAAAAAAAAAAAAAAAA", Sequence: sequence, Data: f}
	text, err := e.Encode()
	must(t, err)
	return journal.Event{Source: "/clusters/c/nodes/" + node, ID: e.ID(), Type: string(e.Type), Cluster: "c", Node: node,
		Stream: e.Stream, Sequence: sequence, Reason: "Fails", JSON: text}
}

// A node that dies is reported lost once, however many workers watch, and seen again once; a removed node's faults end
// with it, and another node of its name starts afresh.
func TestWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := model.New()
		j := &memory{model: m}
		c := &cluster{nodes: map[string]silence.Node{}, dead: map[string]time.Time{}, behind: map[string]string{}}
		for i := range 5 {
			name := fmt.Sprint("n", i)
			c.nodes[name] = silence.Node{UID: "uid-" + name, Pool: "p"}
		}
		log := slog.New(slog.DiscardHandler)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 2 { // two workers at the same time
			w := &silence.Watcher{Name: "c", Cluster: c, Model: m, Append: j.Append, Interval: time.Minute,
				Log: log}
			go w.Run(ctx) // it ends with the test
		}
		from := 0
		expect := func(after time.Duration, what string, want ...string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if diff := cmp.Diff(want, j.take(&from)); diff != "" {
				t.Errorf("%s: %s", what, diff)
			}
		}
		change := func(f func()) {
			c.mu.Lock()
			defer c.mu.Unlock()
			f()
		}
		if _, err := j.Append(ctx, []journal.Event{raise(t, "n0", 1), raise(t, "n1", 1)}); err != nil {
			t.Fatal(err)
		}
		expect(10*time.Minute, "nothing happens", "n0 fault.raised Fails", "n1 fault.raised Fails")
		var base bytes.Buffer
		if _, err := m.Save(&base, "j"); err != nil {
			t.Fatal(err)
		}
		change(func() { c.dead["n0"] = time.Now() })
		expect(time.Minute, "it dies", "n0 node.lost LeaseUnchanged")
		if nodes, _ := m.Nodes("c"); len(nodes) != 5 || nodes[0].Silence == nil || nodes[0].Silence.State != model.Lost ||
			nodes[0].Pool != "p" || nodes[1].Silence != nil {
			t.Errorf("%+v", nodes)
		}
		change(func() { delete(c.dead, "n0") })
		expect(time.Minute, "it is back", "n0 node.seen Heard")
		change(func() { c.dead["n0"] = time.Now() })
		expect(time.Minute, "it dies again", "n0 node.lost LeaseUnchanged")

		change(func() { c.away = true; delete(c.nodes, "n0") })
		expect(time.Minute, "the apiserver cannot be asked whether it is gone")
		change(func() { c.away, c.behind["n0"] = false, "uid-n0" })
		expect(time.Minute, "the watch is behind: it is there")
		change(func() { delete(c.behind, "n0"); j.mu.Lock(); j.full = true; j.mu.Unlock() })
		expect(time.Minute, "the journal is full")
		change(func() { j.mu.Lock(); j.full = false; j.mu.Unlock() })
		expect(time.Minute, "it is gone", "n0 node.removed NodeRemoved", "n0 fault.cleared Fails")
		change(func() { c.nodes["n1"] = silence.Node{UID: "new"} })
		expect(time.Minute, "another has its name", "n1 node.removed NodeReplaced", "n1 fault.cleared Fails")
		if nodes, _ := m.Nodes("c"); len(nodes) != 4 || nodes[0].Node != "n1" || nodes[0].Fatal != 0 {
			t.Errorf("%+v", nodes)
		}
		if faults, _ := m.Faults(func(model.NodeFault) bool { return true }); len(faults) > 0 {
			t.Errorf("%+v", faults)
		}
		if _, err := j.Append(ctx, []journal.Event{raise(t, "n1", 2)}); err != nil {
			t.Fatal(err)
		}
		expect(time.Minute, "its agent speaks", "n1 fault.raised Fails")
		change(func() { delete(c.nodes, "n1") })
		expect(time.Minute, "gone too", "n1 node.removed NodeRemoved", "n1 fault.cleared Fails")
		change(func() { c.away = true; c.nodes["n2"] = silence.Node{UID: "new"} })
		expect(time.Minute, "another n2, and the apiserver is away")
		change(func() { c.away = false })
		expect(time.Minute, "another n2", "n2 node.removed NodeReplaced")
		for sequence := range uint64(2) {
			if _, err := j.Append(ctx, []journal.Event{raise(t, "n9", sequence+1)}); err != nil {
				t.Fatal(err)
			}
			expect(time.Minute, "an agent without a Node", "n9 fault.raised Fails", "n9 node.removed NodeRemoved",
				"n9 fault.cleared Fails")
		}
		checkpoint(t, &base, m, j)
	})
}

// checkpoint demands that the journal after an earlier checkpoint yields the present state, including removed nodes,
// which are kept until the end of the day.
func checkpoint(t *testing.T, base io.Reader, m *model.Model, j *memory) {
	t.Helper()
	m.Advance(time.Now().AddDate(0, 0, 1))
	var text bytes.Buffer
	if _, err := m.Save(&text, "j"); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text.String(), `"name":"n0"`) || strings.Contains(text.String(), `"removed"`) {
		t.Errorf("nodes that are gone are kept: %s", &text)
	}
	loaded, err := model.Load(&text, "j")
	must(t, err)
	rebuilt, err := model.Load(base, "j")
	must(t, err)
	rebuilt.Apply(loaded.Limit(j.records))
	if found := model.Compare(loaded, rebuilt); len(found) > 0 {
		t.Errorf("%+v", found)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
