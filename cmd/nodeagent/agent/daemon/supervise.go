package daemon

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent"
)

// supervise runs all components until ctx ends. It restarts a failed one after componentRetry; the others keep running.
func supervise(ctx context.Context, log *slog.Logger, components []agent.Component) error {
	var wg sync.WaitGroup
	for _, c := range components {
		wg.Go(func() {
			for ctx.Err() == nil {
				err := c.Run(ctx)
				if ctx.Err() != nil || err == nil {
					return
				}
				log.Error("component failed, restarting", "component", c.Name, "err", err)
				select {
				case <-ctx.Done():
				case <-time.After(componentRetry):
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-done:
		return nil
	case <-time.After(stopGrace):
		return errors.New("a component did not stop in time")
	}
}

const (
	componentRetry = 5 * time.Second
	// stopGrace is how long components may take to end; one of them may hang in disk I/O.
	stopGrace = 10 * time.Second
)
