package silence_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event/schemas/schematest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/expecttest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/silence"
)

// cluster is a cluster in which all kubelets renew their Leases, with a center.
type cluster struct {
	*eventcenter.Center
	mu     sync.Mutex // guards the fields below
	nodes  map[string]silence.Node
	behind map[string]string // missing in the watch: Nodes that a GET returns, by UID
	dead   map[string]time.Time
	away   bool
	full   bool // the center's journal
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

func (c *cluster) Append(ctx context.Context, events []journal.Event) (journal.Appended, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.full {
		return journal.Appended{}, journal.ErrFull
	}
	return c.Journal.Append(ctx, events)
}

// stored returns the events after an offset as "NODE TYPE REASON".
func (c *cluster) stored(t *testing.T, after uint64) (lines []string) {
	t.Helper()
	page, err := c.Journal.Read(t.Context(), journal.Query{After: after, Limit: 1000})
	expecttest.OK(t, err)
	for _, r := range page.Records {
		if strings.HasSuffix(r.Source, "/eventcenter") {
			expecttest.OK(t, schematest.Problem(r.JSON))
		}
		kind := strings.TrimSuffix(strings.TrimPrefix(r.Type, "io.github.nodeagent."), ".v1")
		lines = append(lines, fmt.Sprint(r.Node, " ", kind, " ", r.Reason))
	}
	return lines
}

// A node that dies is reported lost once, however many workers watch, and seen again once; a removed node's faults end
// with it, and another node of its name starts afresh.
func TestWatcher(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		center, err := eventcenter.Open(t.Context(), eventcenter.Options{Dir: dir, Log: slog.New(slog.DiscardHandler)})
		expecttest.OK(t, err)
		c := &cluster{Center: center, nodes: map[string]silence.Node{}, dead: map[string]time.Time{},
			behind: map[string]string{}}
		for i := range 5 {
			name := fmt.Sprint("n", i)
			c.nodes[name] = silence.Node{UID: "uid-" + name, Pool: "p"}
		}
		ctx, cancel := context.WithCancel(t.Context())
		var workers sync.WaitGroup
		for range 2 { // at the same time
			w := &silence.Watcher{Name: "c", Cluster: c, Model: c.Model, Append: c.Append, Interval: time.Minute, Log: c.Log}
			workers.Go(func() { _ = w.Run(ctx) })
		}
		after := func(d time.Duration, what string, want ...string) {
			t.Helper()
			from := c.Journal.Bounds().Newest
			time.Sleep(d)
			synctest.Wait()
			expecttest.Equal(t, what, want, c.stored(t, from))
		}
		change := func(f func()) {
			c.mu.Lock()
			defer c.mu.Unlock()
			f()
		}
		journaltest.Append(t, c.Journal, journaltest.Raised(t, "n0", 1), journaltest.Raised(t, "n1", 1))
		after(10*time.Minute, "nothing happens")
		expecttest.OK(t, c.Checkpoint())
		expecttest.OK(t, os.Link(filepath.Join(dir, "model.json"), filepath.Join(dir, "base.json")))
		change(func() { c.dead["n0"] = time.Now() })
		after(time.Minute, "it dies", "n0 node.lost LeaseUnchanged")
		if nodes, _ := c.Model.Nodes("c"); len(nodes) != 5 || nodes[0].Pool != "p" || nodes[0].Silence == nil ||
			nodes[0].Silence.State != model.Lost || nodes[1].Silence != nil {
			t.Errorf("%+v", nodes)
		}
		change(func() { delete(c.dead, "n0") })
		after(time.Minute, "it is back", "n0 node.seen Heard")
		change(func() { c.dead["n0"] = time.Now() })
		after(time.Minute, "it dies again", "n0 node.lost LeaseUnchanged")

		change(func() { c.away = true; delete(c.nodes, "n0") })
		after(time.Minute, "the apiserver cannot be asked whether it is gone")
		change(func() { c.away, c.behind["n0"] = false, "uid-n0" })
		after(time.Minute, "the watch is behind: it is there")
		change(func() { delete(c.behind, "n0"); c.full = true })
		after(time.Minute, "the journal is full")
		change(func() { c.full = false })
		after(time.Minute, "it is gone", "n0 node.removed NodeRemoved", "n0 fault.cleared Fails")
		change(func() { c.nodes["n1"] = silence.Node{UID: "new"} })
		after(time.Minute, "another has its name", "n1 node.removed NodeReplaced", "n1 fault.cleared Fails")
		if nodes, _ := c.Model.Nodes("c"); len(nodes) != 4 || nodes[0].Node != "n1" || nodes[0].Fatal != 0 {
			t.Errorf("%+v", nodes)
		}
		if faults, _ := c.Model.Faults(func(model.NodeFault) bool { return true }); len(faults) > 0 {
			t.Errorf("%+v", faults)
		}
		journaltest.Append(t, c.Journal, journaltest.Raised(t, "n1", 2))
		after(time.Minute, "its agent sends again")
		change(func() { delete(c.nodes, "n1") })
		after(time.Minute, "gone too", "n1 node.removed NodeRemoved", "n1 fault.cleared Fails")
		change(func() { c.away = true; c.nodes["n2"] = silence.Node{UID: "new"} })
		after(time.Minute, "another n2, and the apiserver is away")
		change(func() { c.away = false })
		after(time.Minute, "another n2", "n2 node.removed NodeReplaced")
		for sequence := range uint64(2) {
			journaltest.Append(t, c.Journal, journaltest.Raised(t, "n9", sequence+1))
			after(time.Minute, "an agent without a Node", "n9 node.removed NodeRemoved", "n9 fault.cleared Fails")
		}
		cancel()
		workers.Wait()
		c.Model.Advance(time.Now().AddDate(0, 0, 1)) // until then, removed nodes are kept
		expecttest.OK(t, c.Close())
		saved, err := os.ReadFile(filepath.Join(dir, "model.json"))
		expecttest.OK(t, err)
		expecttest.Lacks(t, "nodes that are gone", string(saved), `"name":"n0"`, `"removed"`)
		verified, err := eventcenter.Verify(t.Context(), dir)
		if err != nil || !verified.Fine() || verified.Checkpoint == 0 {
			t.Errorf("%+v: %v", verified, err)
		}
	})
}
