package eventcenter_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

// follow returns the faults that a follower believes active: it takes each event once, in the order of arrival.
func (c *center) follow() []string {
	active, seen := map[string]string{}, map[string]bool{}
	for _, e := range c.received() {
		f, ok := e.Data.(event.Fault)
		if !ok || seen[e.ID()] {
			continue
		}
		seen[e.ID()] = true
		if active[f.Subject.Name] = f.Reason; e.Type == event.FaultCleared {
			delete(active, f.Subject.Name)
		}
	}
	reasons := []string{}
	for _, reason := range active {
		reasons = append(reasons, reason)
	}
	slices.Sort(reasons)
	return reasons
}

// snapshotsAreLast fails the test if a snapshot arrived before an event that it includes, or before one of an earlier
// start: the center would infer the change, and the late event would then repeat or undo it.
func (c *center) snapshotsAreLast(t *testing.T) {
	t.Helper()
	asOf, of := "", ""
	for _, e := range c.received() {
		if s, ok := e.Data.(event.Snapshot); ok {
			asOf, of = s.AsOf, s.Of
		} else if e.Type != event.AgentAlive && of != "" {
			if e.Stream < of || e.Stream == of && event.Sequence(e.Sequence) <= asOf {
				t.Errorf("%s %s arrives after the snapshot of %s %s", e.Type, e.ID(), of, asOf)
			}
		}
	}
}

// However long the center was away and however often the agent started meanwhile, a follower that takes events in the
// order of arrival ends with the present faults. The snapshot comes after all events that it includes.
func TestOrderAfterOutage(t *testing.T) {
	for _, before := range [][]string{{}, {"A"}, {"A", "B"}} {
		for starts := range 4 {
			for _, last := range [][]string{{}, {"B"}, {"A", "C"}} {
				t.Run(fmt.Sprint(before, starts, last), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						c := &center{}
						config, receiver := config(c)
						config.Store = reporttest.NewStore()
						w := reporttest.NewWorld()
						r := eventcenter.New(config)
						stop := reporttest.Start(t, r)
						r.Update(w.Run("a", nil, before...))
						time.Sleep(time.Minute)
						receiver.Fail(errors.New("connection refused"))
						for range starts {
							r.Update(w.Run("a", nil, "A", "B"))
							time.Sleep(10 * time.Minute)
							stop()
							r = eventcenter.New(config)
							stop = reporttest.Start(t, r)
						}
						r.Update(w.Run("a", nil, "X", "Y", "Z"))
						time.Sleep(10 * time.Minute)
						r.Update(w.Run("a", nil, last...))
						time.Sleep(10 * time.Minute)
						receiver.Mend()
						time.Sleep(10 * time.Minute)
						stop()
						c.check(t)
						c.snapshotsAreLast(t)
						if diff := cmp.Diff(last, c.follow()); diff != "" {
							t.Errorf("a follower believes: %s", diff)
						}
						newest := c.received()[len(c.received())-1].Stream
						if s := c.ofStart(newest); s.Waiting == 0 && starts > 0 {
							t.Error("agent.started says that nothing waits")
						}
					})
				})
			}
		}
	}
}

// ofStart returns the agent data at the start of a stream.
func (c *center) ofStart(stream string) event.Agent {
	for _, e := range c.received() {
		if a, ok := e.Data.(event.Agent); ok && e.Type == event.AgentStarted && e.Stream == stream {
			return a
		}
	}
	return event.Agent{}
}
