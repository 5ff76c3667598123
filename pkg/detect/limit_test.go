package detect

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/notify"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// progressOf runs an engine for ten minutes and returns its progress then. If deaf, the engine's listener blocks.
func progressOf(t *testing.T, deaf bool, checks ...Check) error {
	t.Helper()
	limits := map[string]time.Duration{}
	for _, c := range checks {
		limits[c.ID] = c.Limit()
	}
	progress := notify.NewProgress(limits)
	stuck := make(chan struct{})
	e := NewEngine(fakeHost(), slog.New(slog.DiscardHandler), checks, nil, Observer{}, func(l finding.Observation) {
		if deaf {
			<-stuck
		}
		progress.Ended(l.Check)
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = e.Run(ctx) }()
	t.Cleanup(func() { cancel(); close(stuck); <-done })
	var worst error
	for range 60 {
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if err := progress.Stuck(); err != nil {
			worst = err
		}
	}
	return worst
}

func TestAHungCheckIsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		t.Cleanup(func() { close(hang) })
		var n atomic.Int32
		err := progressOf(t, false,
			Check{ID: "hung", Every: 10 * time.Second, Deadline: 20 * time.Second,
				Run: func(context.Context, *host.Host) ([]finding.Finding, error) {
					<-hang // in the D state
					return nil, nil
				}},
			Check{ID: "seldom", Every: 5 * time.Minute, Run: counting(&n)})
		if err != nil {
			t.Errorf("an engine that works is called stuck: %v", err)
		}
	})
}

func TestAnEngineThatStandsStillIsNoProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		if err := progressOf(t, true, Check{ID: "a", Every: 10 * time.Second, Run: counting(&n)}); err == nil {
			t.Error("nobody noticed")
		}
	})
}
