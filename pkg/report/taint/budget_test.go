package taint

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

// purse is a budget: how much room there is, and what was asked of it.
type purse struct {
	room     bool
	err      error
	holds    int
	releases int
}

func (p *purse) Hold(context.Context) (bool, time.Duration, error) {
	p.holds++
	return p.room && p.err == nil, 15 * time.Minute, p.err
}

func (p *purse) Release(context.Context) error { p.releases++; return p.err }

const preferred = DefaultKey + "=DiskReadonly:PreferNoSchedule"

func TestBudgetOfIsolatedNodes(t *testing.T) {
	p := &purse{room: true}
	run(t, func(c *Config) { c.Budget = p }, func(t *testing.T, r *Reporter, n *reporttest.Taints, w *reporttest.World) {
		r.Update(w.Run("disk", nil, "DiskReadonly"))
		shows(t, n, time.Second, readonly)
		shows(t, n, time.Hour, readonly)
		if p.holds < 4 || p.releases != 0 {
			t.Errorf("within an hour: kept %d times, given back %d times", p.holds, p.releases)
		}
		p.room = false // others were faster when it was renewed
		shows(t, n, 20*time.Minute, preferred)
		if p.releases != 1 {
			t.Errorf("given back %d times", p.releases)
		}
		p.room = true
		shows(t, n, 20*time.Minute, readonly)
		r.Update(w.Run("disk", nil))
		shows(t, n, DefaultHold+time.Second)
		if p.releases != 2 {
			t.Errorf("after the end of the taint: given back %d times", p.releases)
		}
		holds := p.holds
		shows(t, n, 2*time.Hour)
		if p.holds != holds {
			t.Error("a node without a taint asks for the budget")
		}
	})
}

func TestWithoutRoomTheTaintIsWeaker(t *testing.T) {
	p := &purse{}
	run(t, func(c *Config) { c.Budget = p }, func(t *testing.T, r *Reporter, n *reporttest.Taints, w *reporttest.World) {
		r.Update(w.Run("disk", nil, "DiskReadonly"))
		shows(t, n, time.Second, preferred)
		_, writes := n.Shown()
		shows(t, n, time.Hour, preferred)
		if _, again := n.Shown(); again != writes {
			t.Errorf("%d writes that change nothing", again-writes)
		}
		r.Update(w.Run("disk", nil))
		shows(t, n, DefaultHold+time.Second)
	})
}

// A budget that cannot be asked leaves the node as it is: it is neither tainted nor freed.
func TestBudgetCannotBeAsked(t *testing.T) {
	p := &purse{err: errors.New("no apiserver")}
	run(t, func(c *Config) { c.Budget = p }, func(t *testing.T, r *Reporter, n *reporttest.Taints, w *reporttest.World) {
		r.Update(w.Run("disk", nil, "DiskReadonly"))
		shows(t, n, time.Hour)
		p.err, p.room = nil, true
		shows(t, n, 10*time.Minute, readonly)
		p.err = errors.New("no apiserver")
		shows(t, n, 2*time.Hour, readonly)
		r.Update(w.Run("disk", nil)) // a recovery needs no budget
		shows(t, n, DefaultHold+6*time.Minute)
	})
}

// What only lowers the node's worth, and what is not done at all, needs none.
func TestBudgetIsNotAsked(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"prefer":      func(c *Config) { c.Prefer = []string{"disk"} },
		"dry-run":     func(c *Config) { c.Mode = DryRun },
		"kill switch": func(c *Config) { c.Stopped = func() string { return "stop file" } },
	} {
		t.Run(name, func(t *testing.T) {
			p := &purse{room: true}
			run(t, func(c *Config) { c.Budget = p; change(c) }, func(t *testing.T, r *Reporter, _ *reporttest.Taints,
				w *reporttest.World) {
				r.Update(w.Run("disk", nil, "DiskReadonly"))
				time.Sleep(time.Hour)
				if p.holds != 0 {
					t.Errorf("asked %d times", p.holds)
				}
			})
		})
	}
}
