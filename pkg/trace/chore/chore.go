// Package chore does work again and again.
package chore

import (
	"context"
	"log/slog"
	"time"
)

// Chore is repeated work.
type Chore struct {
	Name  string
	Every time.Duration // 0: each turn
	Do    func(ctx context.Context, now time.Time) error
}

// Repeat does chores, one after the other, at once and then each turn until ctx ends. It does a failed one again when it is
// due, and logs when one begins to fail or works again.
func Repeat(ctx context.Context, log *slog.Logger, turn time.Duration, chores ...Chore) {
	last, failing := make([]time.Time, len(chores)), make([]bool, len(chores))
	ticker := time.NewTicker(turn)
	defer ticker.Stop()
	for now := time.Now(); ; {
		for i, c := range chores {
			if now.Sub(last[i]) < c.Every-turn/2 { // a tick may come early
				continue
			}
			last[i] = now
			err := c.Do(ctx, now)
			if ctx.Err() != nil {
				return
			}
			switch {
			case err != nil && !failing[i]:
				log.Warn("repeated work fails, retrying", "work", c.Name, "err", err)
			case err == nil && failing[i]:
				log.Info("repeated work succeeds again", "work", c.Name)
			}
			failing[i] = err != nil
		}
		select {
		case <-ctx.Done():
			return
		case now = <-ticker.C:
		}
	}
}
