package report

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// withCheckpoint returns a world with one agent, and a checkpoint after its first event.
func withCheckpoint(t *testing.T) (*world, *agent, *bytes.Buffer) {
	t.Helper()
	w := newWorld(t, november(20, 12), time.UTC)
	a := w.agent("n")
	w.store1(a.event(event.AgentStarted, finding.Info, event.Agent{}))
	checkpoint := new(bytes.Buffer)
	_, err := w.model.Save(checkpoint, w.store.Bounds().Journal)
	w.must(err)
	return w, a, checkpoint
}

// A day ends before events of that day are applied, so the next day counts them, and the center is killed before its
// next checkpoint: when it starts again, each event is in one day, whether the next day is stored or not.
func TestKilledAfterMidnight(t *testing.T) {
	for _, stored := range []bool{false, true} {
		w, a, checkpoint := withCheckpoint(t)
		w.at(21, 0, 1)
		w.must(w.keeper.Follow())
		w.at(20, 23, 59)
		w.store1(a.raise(newFault("disk", "sda", finding.Fatal), 0))
		w.at(21, 1, 0)
		if stored {
			w.at(22, 1, 0)
			w.must(w.keeper.Follow())
		}
		w.load(checkpoint)
		first, next := w.report(Daily, "2026-11-20"), w.report(Daily, "2026-11-21")
		if first.Faults.Found+next.Faults.Found != 1 || first.Offset != next.Before || next.Offset != 2 {
			t.Errorf("stored %t: %d found up to %d, then %d after %d", stored, first.Faults.Found, first.Offset,
				next.Faults.Found, next.Before)
		}
	}
}

// Likewise after several midnights: each event is in one day.
func TestKilledAfterTwoMidnights(t *testing.T) {
	w, a, checkpoint := withCheckpoint(t)
	for day := 20; day < 22; day++ {
		w.at(day+1, 0, 1)
		w.must(w.keeper.Follow())
		w.at(day, 23, 59) // by another replica's clock
		w.store1(a.raise(newFault("disk", fmt.Sprint(day), finding.Fatal), 0))
	}
	w.at(22, 1, 0)
	w.must(w.keeper.Follow())
	w.load(checkpoint)
	found, offset := 0, uint64(0)
	for _, date := range []string{"2026-11-20", "2026-11-21", "2026-11-22"} {
		r := w.report(Daily, date)
		if r.Before != offset || r.Lost > 0 {
			t.Errorf("%s begins after %d, want %d; lost %d", date, r.Before, offset, r.Lost)
		}
		found, offset = found+r.Faults.Found, r.Offset
	}
	if found != 2 || offset != 3 {
		t.Errorf("%d found up to %d", found, offset)
	}
}

// A replica ends no day while it is cut off: events of others may be missing. It ends the day when it has them.
func TestCutOff(t *testing.T) {
	w := newWorld(t, november(20, 12), time.UTC)
	a := w.agent("n")
	w.store1(a.event(event.AgentStarted, finding.Info, event.Agent{}))
	cut := errors.New("cut off")
	w.keeper.Ready = func() error { return cut }
	w.at(21, 0, 1)
	if r := w.report(Daily, "2026-11-20"); !r.Partial || !r.Through.Equal(november(20, 12)) {
		t.Errorf("partial %t through %s", r.Partial, r.Through)
	}
	w.at(20, 23, 59)
	w.store1(a.raise(newFault("disk", "sda", finding.Fatal), 0))
	cut = nil
	w.at(21, 0, 2)
	if r := w.report(Daily, "2026-11-20"); r.Partial || r.Faults.Found != 1 {
		t.Errorf("partial %t, %d found", r.Partial, r.Faults.Found)
	}
}
