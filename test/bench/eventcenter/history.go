package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/sqlite"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const historyDays = 30

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
	var faults []event.Fault
	if n%20 == 0 {
		_, u := changeOf("sda", finding.Warning, true, now)
		e, _ := event.OfUpdate(u)
		if f, ok := e.Data.(event.Fault); ok {
			faults = append(faults, f)
		}
	}
	return snapshotOf(n, sequence, append([]event.Fault{}, faults...), now)
}
