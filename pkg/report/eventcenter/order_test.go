package eventcenter_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/event"
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
					bubble(t, func(t *testing.T, k *kit) {
						k.start()
						k.find(before...)
						time.Sleep(time.Minute)
						k.away()
						for range starts {
							k.find("A", "B")
							time.Sleep(10 * time.Minute)
							k.stop()
							k.start()
						}
						k.find("X", "Y", "Z")
						time.Sleep(10 * time.Minute)
						k.find(last...)
						time.Sleep(10 * time.Minute)
						k.receiver.Mend()
						time.Sleep(10 * time.Minute)
						k.stop()
						k.check()
						k.c.snapshotsAreLast(t)
						if diff := cmp.Diff(last, k.c.follow()); diff != "" {
							t.Errorf("a follower believes: %s", diff)
						}
						newest := k.c.received()[len(k.c.received())-1].Stream
						if s := k.c.ofStart(newest); s.Waiting == 0 && starts > 0 {
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
