package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/sqlite"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	historyDays = 30
	clusterName = "bench"
)

func nodeName(i int) string { return fmt.Sprintf("node-%05d.example.internal", i) }

// streamOf returns a ULID without a real time.
func streamOf(i int) string { return fmt.Sprintf("01K%023d", i) }

// makeHistory fills a center's journal with the last 30 days: for each node snapshots and, every third day, a fault
// that is raised and cleared; on one of twenty nodes it stays.
func makeHistory(ctx context.Context, dir string, nodes, perDay int) (events int, err error) {
	begin := time.Now().AddDate(0, 0, -historyDays)
	now := begin
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	s, err := sqlite.Open(ctx, sqlite.Options{Dir: filepath.Join(dir, "journal"), Log: log,
		Now: func() time.Time { return now }, Keep: 90 * 24 * time.Hour})
	if err != nil {
		return 0, err
	}
	defer s.Close()
	sequences := make([]uint64, nodes)
	total := historyDays * perDay
	for step := range total {
		for from := 0; from < nodes; from += 1000 {
			now = begin.Add(24 * time.Hour * time.Duration(step*nodes+from) / time.Duration(perDay*nodes))
			var batch []journal.Event
			for n := from; n < min(from+1000, nodes); n++ {
				sequences[n]++
				e, err := pastEvent(n, step, perDay, sequences[n], now)
				if err != nil {
					return 0, err
				}
				batch = append(batch, e)
			}
			if _, err := s.Append(ctx, batch); err != nil {
				return 0, err
			}
			events += len(batch)
		}
	}
	return events, nil
}

// pastEvent is an event of a node: a change every third day, otherwise a snapshot of its state.
func pastEvent(n, step, perDay int, sequence uint64, now time.Time) (journal.Event, error) {
	switch (step + n) % (3 * perDay) {
	case 0:
		return changed(n, sequence, true, now)
	case 1:
		return changed(n, sequence, n%20 == 0, now)
	}
	state := event.Snapshot{AsOf: event.Sequence(sequence - 1), Of: streamOf(n), Part: 1, End: true,
		Faults: []event.Fault{}, Leftovers: []event.Activity{}, Unknown: []string{}, PodsEnded: &sequence}
	if n%20 == 0 {
		state.Faults = append(state.Faults, faultOf(now))
	}
	return journaled(n, sequence, event.Event{Type: event.NodeSnapshot, Time: now, Severity: finding.Info, Data: state})
}

func faultOf(now time.Time) event.Fault {
	return event.Fault{ID: "disk-errors/sda", Check: "disk-errors", Subject: finding.Subject{Kind: "disk", Name: "sda"},
		Severity: finding.Warning, Reason: "DiskErrors", ObservedAt: now, RaisedAt: now,
		Message: "12 of the last 1,000 requests to sda failed: medium error at sector 1234567",
		Facts:   map[string]string{"device": "sda", "errors": "12", "model": "SAMSUNG MZQL23T8HCLS-00A07"}}
}

// changed returns a node's change: a fault on a disk is raised or cleared.
func changed(node int, sequence uint64, raised bool, now time.Time) (journal.Event, error) {
	f := faultOf(now)
	e := event.Event{Type: event.FaultCleared, Time: now, Severity: f.Severity, Data: f,
		Subject: event.Subject{Check: f.Check, Reason: f.Reason, Kind: f.Subject.Kind, Name: f.Subject.Name}}
	if raised {
		e.Type = event.FaultRaised
	}
	return journaled(node, sequence, e)
}

// journaled returns a node's event in the journal's form.
func journaled(node int, sequence uint64, e event.Event) (journal.Event, error) {
	e.Cluster, e.Node, e.Stream, e.Sequence = clusterName, nodeName(node), streamOf(node), sequence
	text, err := e.Encode()
	return journal.Event{Source: "/clusters/" + e.Cluster + "/nodes/" + e.Node, ID: e.ID(), Type: string(e.Type),
		Cluster: e.Cluster, Node: e.Node, Severity: string(e.Severity), Check: e.Subject.Check, Reason: e.Subject.Reason,
		Stream: e.Stream, Sequence: sequence, JSON: text}, err
}
