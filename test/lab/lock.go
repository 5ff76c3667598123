package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"
)

// lock makes sure that only one process on the machine holds a name; it logs other if it has to wait. It is an abstract
// Unix socket: the kernel releases it when its owner exits, and it leaves no file behind.
func lock(ctx context.Context, name, other string, logf func(string, ...any)) (unlock func(), err error) {
	reported := false
	for {
		listener, err := net.Listen("unix", "@"+name)
		if err == nil {
			return func() { listener.Close() }, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("take the lock %s: %w", name, err)
		}
		if !reported {
			logf("%s; waiting for it", other)
			reported = true
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return nil, fmt.Errorf("take the lock %s: %s: %w", name, other, err)
		}
	}
}

// pause waits for d, or less when ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// poll calls probe until it succeeds, ctx ends or limit has passed, and returns the last error of probe.
func poll(parent context.Context, limit, every time.Duration, probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(parent, limit)
	defer cancel()
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		if stop := (permanent{}); errors.As(err, &stop) {
			return err
		}
		if pause(ctx, every) == nil {
			continue
		}
		if parent.Err() != nil {
			return fmt.Errorf("%w; until then: %w", parent.Err(), err)
		}
		return fmt.Errorf("not within %v: %w", limit, err)
	}
}

// permanent marks an error that waiting will not resolve.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }
