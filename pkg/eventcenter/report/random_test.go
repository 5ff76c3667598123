package report

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// chance is a fleet with random events.
type chance struct {
	*world
	*rand.Rand
	agents   []*agent
	withheld []journal.Event // to be sent late
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// happen makes one random thing happen on a node.
func (c *chance) happen(a *agent) {
	send := c.store1
	if c.IntN(6) == 0 { // the connection to the center is down for a while
		send = func(events ...journal.Event) { c.withheld = append(c.withheld, events...) }
	}
	active := slices.Sorted(maps.Keys(a.active))
	severity := pick(c.Rand, []finding.Severity{finding.Fatal, finding.Warning, finding.Warning, finding.Info})
	switch n := c.IntN(20); {
	case n < 5:
		f := newFault(pick(c.Rand, []string{"disk", "net", "cri"}), fmt.Sprint(c.IntN(3)), severity)
		if _, there := a.active[f.Check+f.Subject.Name]; there {
			return
		}
		f.OneShot = c.IntN(6) == 0
		c.pass(time.Millisecond) // no two are raised at the same time
		send(a.raise(f, time.Duration(c.IntN(7200))*time.Second))
	case n < 8 && len(active) > 0:
		send(a.clear(pick(c.Rand, active)))
	case n == 8 && len(active) > 0:
		f := a.active[pick(c.Rand, active)]
		f.Severity = severity
		a.active[f.Check+f.Subject.Name] = f
		send(a.event(event.FaultUpdated, f.Severity, f))
	case n == 9 && len(active) > 0:
		c.store1(a.action(a.active[pick(c.Rand, active)]))
	case n == 10:
		c.store1(a.snapshot())
	case n == 11:
		kind, name := pick(c.Rand, []string{"mount", "cgroup"}), fmt.Sprint("l", c.IntN(3))
		t := event.LeftoverFound
		if _, there := a.left[name]; there {
			t, kind = pick(c.Rand, []event.Type{event.LeftoverGone, event.LeftoverReleased}), a.left[name].Subject.Kind
		}
		send(a.leftover(t, kind, name))
	case n == 12:
		t := pick(c.Rand, []event.Type{event.NodeBlind, event.NodeLost, event.NodeSeen})
		c.store1(c.center(t, a.node, `{"reason":"x","message":"","since":"2026-11-01T00:00:00Z"}`))
	case n == 13 && len(a.sent) > 0: // sent again
		c.store1(pick(c.Rand, a.sent))
	case n == 14:
		a.pods += uint64(c.IntN(20))
	case n == 15 && c.IntN(3) == 0:
		c.store1(c.center(event.NodeRemoved, a.node, `{"reason":"NodeRemoved","message":"","since":"2026-11-01T00:00:00Z"}`))
		c.withheld = slices.DeleteFunc(c.withheld, func(j journal.Event) bool { return j.Node == a.node })
		a.restart()
		a.sent = nil
	case n == 16 && c.IntN(2) == 0:
		c.store1(a.event(event.AgentStopping, finding.Info, event.Agent{}))
		if c.IntN(2) == 0 {
			c.pass(time.Minute)
			a.restart()
			c.store1(a.started())
		}
	case n == 17:
		c.people(a, active)
	case n == 18 && len(c.withheld) > 0:
		c.store1(c.withheld...)
		c.withheld = nil
	}
}

// people adds notes on a fault that the center knows.
func (c *chance) people(a *agent, active []string) {
	if _, _, there := c.model.Node(model.Key{Cluster: "c", Node: a.node}); !there {
		return
	}
	if c.IntN(4) == 0 {
		until := c.now.Add(time.Duration(c.IntN(8)) * time.Hour)
		c.store1(c.center(event.OperatorMaintenance, a.node, fmt.Sprintf(`{"by":"ada","until":%q}`,
			until.UTC().Format(time.RFC3339))))
		return
	}
	known, _ := c.model.Faults(func(f model.NodeFault) bool { return f.Node == a.node })
	if len(known) == 0 || len(active) == 0 {
		return
	}
	kind, said := event.OperatorAcknowledged, event.Operator{By: "ada"}
	if c.IntN(2) == 0 {
		kind, said.Until = event.OperatorMuted, c.now.Add(time.Duration(c.IntN(30))*time.Hour).UTC().Truncate(time.Second)
	}
	e, err := model.OperatorEvent(kind, pick(c.Rand, known), said, c.now)
	c.must(err)
	c.store1(e)
}

// Whatever happens, every number of every day equals the count of plain SQL over the journal, and the open faults are
// those that the center shows.
func TestRandomDays(t *testing.T) {
	runs := 25
	if testing.Short() {
		runs = 8
	}
	for seed := range uint64(runs) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			zone := time.UTC
			if seed%2 == 1 {
				zone = time.FixedZone("X", 5*3600+1800)
			}
			c := chance{world: newWorld(t, time.Date(2026, 11, 20, 7, 0, 0, 0, time.UTC), zone),
				Rand: rand.New(rand.NewPCG(seed, 1))}
			for i := range 5 {
				a := c.agent(fmt.Sprint("n", i))
				a.counts, a.skew = i != 0, time.Duration(i-2)*5*time.Hour
				c.agents = append(c.agents, a)
				c.places[a.node] = model.Place{Pool: fmt.Sprint("pool", i%2), Zone: fmt.Sprint("zone", i%3)}
			}
			for range 400 {
				c.happen(pick(c.Rand, c.agents))
				c.pass(time.Duration(c.IntN(900)) * time.Second)
				switch c.IntN(60) {
				case 0:
					c.open()
				case 1:
					c.must(c.keeper.Follow())
				}
			}
			db := c.count()
			db.place(c.places)
			days := 0
			for date := c.now.AddDate(0, 0, -3); !date.After(c.now); date = date.AddDate(0, 0, 1) {
				r, err := c.keeper.Report(Daily, date.In(zone).Format(time.DateOnly))
				if err != nil {
					continue
				}
				days++
				db.compare(r, c.now)
			}
			r := c.report(Daily, "today")
			active, _ := c.model.Faults(func(model.NodeFault) bool { return true })
			if r.Faults.Open != len(active) || days < 2 || r.Faults.OpenBefore < 0 {
				t.Errorf("%d faults are open, the center shows %d; %d days", r.Faults.Open, len(active), days)
			}
		})
	}
}
