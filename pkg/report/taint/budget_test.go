package taint

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

// purse is a budget: its room, and the calls it received.
type purse struct {
	mu       sync.Mutex // guards all below
	room     bool
	err      error
	holds    int
	releases int
}

func (p *purse) Hold(context.Context) (bool, time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holds++
	return p.room && p.err == nil, 15 * time.Minute, p.err
}

func (p *purse) Release(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.releases++
	return p.err
}

func (p *purse) set(room bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.room, p.err = room, err
}

// asked returns how often each method was called.
func (p *purse) asked() (holds, releases int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.holds, p.releases
}

const preferred = DefaultKey + "=DiskReadonly:PreferNoSchedule"

func TestBudgetOfIsolatedNodes(t *testing.T) {
	p := &purse{room: true}
	run(t, func(c *Config) { c.Budget = p }, func(t *testing.T, r *Reporter, n *fakeTaints, w *reporttest.World) {
		r.Update(w.Run("disk", nil, "DiskReadonly"))
		shows(t, n, time.Second, readonly)
		shows(t, n, time.Hour, readonly)
		if holds, releases := p.asked(); holds < 4 || releases != 0 {
			t.Errorf("within an hour: kept %d times, given back %d times", holds, releases)
		}
		p.set(false, nil) // other nodes took the place before its renewal
		shows(t, n, 20*time.Minute, preferred)
		if _, releases := p.asked(); releases != 1 {
			t.Errorf("given back %d times", releases)
		}
		p.set(true, nil)
		shows(t, n, 20*time.Minute, readonly)
		r.Update(w.Run("disk", nil))
		shows(t, n, DefaultHold+time.Second)
		holds, releases := p.asked()
		if releases != 2 {
			t.Errorf("after the end of the taint: given back %d times", releases)
		}
		shows(t, n, 2*time.Hour)
		if again, _ := p.asked(); again != holds {
			t.Error("a node without a taint asks for the budget")
		}
	})
}

func TestWithoutRoomTheTaintIsWeaker(t *testing.T) {
	p := &purse{}
	run(t, func(c *Config) { c.Budget = p }, func(t *testing.T, r *Reporter, n *fakeTaints, w *reporttest.World) {
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

// If the budget cannot be asked, the node stays as it is: it is neither tainted nor freed.
func TestBudgetCannotBeAsked(t *testing.T) {
	p := &purse{err: errors.New("no apiserver")}
	run(t, func(c *Config) { c.Budget = p }, func(t *testing.T, r *Reporter, n *fakeTaints, w *reporttest.World) {
		r.Update(w.Run("disk", nil, "DiskReadonly"))
		shows(t, n, time.Hour)
		p.set(true, nil)
		shows(t, n, 10*time.Minute, readonly)
		p.set(true, errors.New("no apiserver"))
		shows(t, n, 2*time.Hour, readonly)
		r.Update(w.Run("disk", nil)) // a recovery needs no budget
		shows(t, n, DefaultHold+6*time.Minute)
	})
}

// PreferNoSchedule and dry-run need no budget.
func TestBudgetIsNotAsked(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"prefer":      func(c *Config) { c.Prefer = []string{"disk"} },
		"dry-run":     func(c *Config) { c.Mode = DryRun },
		"kill switch": func(c *Config) { c.Stopped = func() string { return "stop file" } },
	} {
		t.Run(name, func(t *testing.T) {
			p := &purse{room: true}
			run(t, func(c *Config) { c.Budget = p; change(c) }, func(t *testing.T, r *Reporter, _ *fakeTaints,
				w *reporttest.World) {
				r.Update(w.Run("disk", nil, "DiskReadonly"))
				time.Sleep(time.Hour)
				if holds, _ := p.asked(); holds != 0 {
					t.Errorf("asked %d times", holds)
				}
			})
		})
	}
}
