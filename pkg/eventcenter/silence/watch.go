package silence

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// asksPerRound limits how many single Nodes are requested from the apiserver per round.
const asksPerRound = 200

// Cluster is the part of a cluster that a Watcher reads.
type Cluster interface {
	// Nodes returns the Nodes of a watch; ok is false until its first list is complete.
	Nodes() (nodes map[string]Node, ok bool)
	// Leases returns the renewal times of the nodes' Leases.
	Leases(ctx context.Context) (map[string]time.Time, error)
	// Ask returns the UID of one Node, empty if there is none, and its condition Ready.
	Ask(ctx context.Context, name string) (uid, ready string, err error)
}

// Watcher judges the nodes of a cluster, and writes changes into the journal.
type Watcher struct {
	Name     string // of the cluster
	Cluster  Cluster
	Model    *model.Model
	Append   func(ctx context.Context, events []journal.Event) (journal.Appended, error)
	Interval time.Duration // of the agents' signs of life
	Log      *slog.Logger
}

// Run judges until ctx ends. It starts when the cluster's Nodes are known.
func (w *Watcher) Run(ctx context.Context) error {
	judge := NewJudge(w.Interval, time.Now())
	for {
		if _, ok := w.Cluster.Nodes(); ok {
			break
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
	tick := time.NewTicker(ListEvery)
	defer tick.Stop()
	for {
		w.round(ctx, judge)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (w *Watcher) round(ctx context.Context, judge *Judge) {
	at := time.Now()
	nodes, ok := w.Cluster.Nodes()
	if !ok {
		return
	}
	leases, err := w.Cluster.Leases(ctx)
	if err != nil && ctx.Err() == nil {
		w.Log.Warn("list Leases failed: judging no node as silent", "cluster", w.Name, "err", err)
		leases = nil
	}
	known, whole := w.Model.Known(w.Name)
	asks := asksPerRound
	verdicts := w.removed(ctx, nodes, known, &asks)
	for _, v := range verdicts {
		delete(nodes, v.Node) // another node of that name is judged once this is in the journal
	}
	w.describe(nodes)
	verdicts = append(verdicts, judge.Judge(Observation{At: at, Nodes: nodes, Leases: leases, Known: known,
		Whole: whole})...)
	events := make([]journal.Event, 0, len(verdicts))
	for _, v := range verdicts {
		last := known[v.Node].Silence.Event
		switch {
		case v.Node == "":
			last = whole.Event
		case v.Type == event.NodeRemoved:
			last = strconv.FormatUint(known[v.Node].Offset, 10)
		}
		if (v.Type == event.NodeBlind || v.Type == event.NodeLost) && asks > 0 {
			asks--
			if _, v.Ready, err = w.Cluster.Ask(ctx, v.Node); err != nil {
				v.Ready = ""
			}
		}
		events = append(events, w.event(v, last, time.Now()))
	}
	if len(events) == 0 || ctx.Err() != nil {
		return
	}
	if _, err := w.Append(ctx, events); err != nil && ctx.Err() == nil {
		w.Log.Error("store findings about silent nodes failed, retrying in the next round", "cluster", w.Name,
			"err", err)
	}
}

func (w *Watcher) describe(nodes map[string]Node) {
	described := make(map[string]model.Meta, len(nodes))
	for name, n := range nodes {
		described[name] = model.Meta{UID: n.UID, Pool: n.Pool, Zone: n.Zone}
	}
	w.Model.Describe(w.Name, described)
}

// removed returns the removed nodes: the apiserver confirms each of them, since the watch may be behind.
func (w *Watcher) removed(ctx context.Context, nodes map[string]Node, known map[string]model.Known,
	asks *int) (gone []Verdict) {
	for _, name := range slices.Sorted(maps.Keys(known)) {
		was, is := known[name].UID, nodes[name].UID
		if is != "" && (was == "" || was == is) {
			continue
		}
		if *asks--; *asks < 0 || ctx.Err() != nil {
			return gone
		}
		uid, _, err := w.Cluster.Ask(ctx, name)
		if err != nil {
			return gone // the next round asks again
		}
		v := Verdict{Node: name, Type: event.NodeRemoved, Silence: event.Silence{Reason: "NodeRemoved", UID: was,
			Since: time.Now(), LastSeen: known[name].LastSeen, Message: "the Node object is gone"}}
		switch {
		case uid == "":
			gone = append(gone, v)
		case was != "" && uid != was:
			v.Reason, v.Message = "NodeReplaced", "another Node has its name"
			gone = append(gone, v)
		}
	}
	return gone
}

// event returns the event of a verdict. Its ID is derived from the previous event and its own content: two concurrent
// workers create the same event, and it is stored once.
func (w *Watcher) event(v Verdict, last string, at time.Time) journal.Event {
	severities := map[event.Type]finding.Severity{event.NodeLost: finding.Fatal, event.NodeBlind: finding.Warning,
		event.ClusterSilent: finding.Fatal}
	kind, name := "node", v.Node
	if v.Node == "" {
		kind, name = "cluster", w.Name
	}
	j, err := model.Own{Cluster: w.Name, Node: v.Node, ID: model.DerivedID("silence", w.Name, v.Node, v.UID, last, string(v.Type)), Type: v.Type,
		Check: "silence", Reason: v.Reason, Subject: finding.Subject{Kind: kind, Name: name}, Severity: severities[v.Type],
		Time: at.UTC(), Data: v.Silence}.Event()
	if err != nil {
		w.Log.Error("encode an event failed", "err", err) // plain data of our own types: it can
	}
	return j
}
