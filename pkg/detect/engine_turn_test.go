package detect

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Timed runs start one after another; a run that waits does not block the others, and a wake waits for none of them.
func TestEngineRunsOneAfterAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, together, slow, woken, behind atomic.Int32
		short := func(context.Context, *host.Host) ([]finding.Finding, error) {
			if now := running.Add(1); now > together.Load() {
				together.Store(now)
			}
			time.Sleep(time.Millisecond)
			running.Add(-1)
			return nil, nil
		}
		var checks []Check
		for range 20 {
			checks = append(checks, Check{ID: "short", Every: 20 * time.Second, Run: short})
		}
		e, _ := engineFor(t, nil, append(checks, Check{ID: "woken", Every: 20 * time.Second, Run: counting(&woken),
			Wakes: []Wake{{Source: WakeMounts}}})...)
		time.Sleep(time.Second) // all run at start
		together.Store(0)
		time.Sleep(10 * time.Minute)
		if n := together.Load(); n != 1 {
			t.Errorf("%d runs side by side", n)
		}
		e.turn <- struct{}{} // a run that never passes it on
		time.Sleep(time.Minute)
		before := woken.Load()
		e.Wake(WakeMounts, Change{})
		synctest.Wait()
		if woken.Load() != before+1 {
			t.Error("a wake waits for the turn")
		}
		<-e.turn
		_, _ = engineFor(t, nil,
			Check{ID: "slow", Every: 20 * time.Second, Deadline: 30 * time.Second,
				Run: func(ctx context.Context, _ *host.Host) ([]finding.Finding, error) {
					slow.Add(1)
					select {
					case <-ctx.Done():
					case <-time.After(20 * time.Second):
					}
					return nil, nil
				}},
			Check{ID: "behind", Every: 20 * time.Second, Run: counting(&behind)})
		time.Sleep(10 * time.Minute)
		if n := behind.Load(); slow.Load() < 10 || n < 28 {
			t.Errorf("%d runs beside %d slow ones, want one each 20 s", n, slow.Load())
		}
	})
}

// A run begins at a moment of the grid, soon, and not much later than its interval, wherever the last run ended.
func TestGrid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for since := time.Duration(0); since < time.Minute; since += 170 * time.Millisecond {
			e := &Engine{begun: time.Now().Add(-since)}
			for _, next := range []time.Duration{8100 * time.Millisecond, 8600 * time.Millisecond, 9500 * time.Millisecond, 10 * time.Second,
				15 * time.Second, 21 * time.Second, 57 * time.Second, 285 * time.Second} {
				until, short := e.onGrid(next), next < 9*time.Second
				if until <= 0 || until > next+max(time.Second, next/20) || !short && (since+until)%grid != 0 || short && until != next {
					t.Errorf("%s after the begin, the next run in %s comes in %s", since, next, until)
				}
			}
		}
	})
}
