package eventcenter

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/report"
)

const (
	// snapshotEvery is the least interval of snapshots; up to the same again is added at random.
	snapshotEvery = 30 * time.Minute
	// learnedAfter is how long after a check became known a snapshot reports it: a fault of an earlier start that the
	// check does not find has ended without an event. Many checks become known together.
	learnedAfter = 10 * time.Second
	// partSize is well below event.MaxSnapshot, to leave room for the envelope.
	partSize = event.MaxSnapshot - 32<<10
)

// snapshotDue returns when to send the next snapshot.
func (r *Reporter) snapshotDue() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return report.Earliest(r.snapshotAt, r.learned)
}

// sendSnapshot sends all active faults and leftovers.
func (r *Reporter) sendSnapshot(ctx context.Context) error {
	r.mu.Lock()
	own := r.outbox.own
	asOf, faults, unknown := r.outbox.last, slices.Clone(r.faults), slices.Clone(r.unknown)
	var leftovers []event.Activity
	for _, key := range slices.Sorted(maps.Keys(r.leftovers)) {
		leftovers = append(leftovers, r.leftovers[key])
	}
	r.blind, r.learned = unknown, time.Time{}
	r.mu.Unlock()
	for _, part := range parts(faults, leftovers, unknown) {
		if part.End {
			part.PodsEnded = r.config.PodsEnded()
		}
		part.AsOf, part.Of = event.Sequence(asOf), own
		if err := r.sendState(ctx, event.Event{Type: event.NodeSnapshot, Data: part}); err != nil {
			r.snapshotAt = time.Now() // send the whole snapshot again
			return err
		}
	}
	r.snapshotAt = time.Now().Add(snapshotEvery + report.Jitter(snapshotEvery, r.config.Rand))
	return nil
}

// parts divides the active faults and leftovers into snapshots that are not too large. There is at least one.
func parts(faults []event.Fault, leftovers []event.Activity, unknown []string) []event.Snapshot {
	empty := event.Snapshot{Faults: []event.Fault{}, Leftovers: []event.Activity{}}
	all, size := []event.Snapshot{empty}, 0
	last := func(v any) *event.Snapshot {
		text, _ := json.Marshal(v) // plain data: it can always be encoded
		if size += len(text) + 1; size > partSize {
			all, size = append(all, empty), len(text)
		}
		return &all[len(all)-1]
	}
	for _, f := range faults {
		p := last(f)
		p.Faults = append(p.Faults, f)
	}
	for _, l := range leftovers {
		p := last(l)
		p.Leftovers = append(p.Leftovers, l)
	}
	last(unknown).Unknown = unknown
	for i := range all {
		all[i].Part, all[i].End = i+1, i == len(all)-1
	}
	return all
}
