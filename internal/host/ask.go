package host

import (
	"context"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// Ask makes a call to a client, which is nil if not configured.
func Ask[T any](ctx context.Context, what string, call func(context.Context) (T, error)) (T, error) {
	if call == nil {
		var none T
		return none, fmt.Errorf("%s: %w", what, hosterr.ErrNotConfigured)
	}
	return call(ctx)
}

// ReplyGrace is the time that Abandon gives a call to return after the end of its context.
const ReplyGrace = 20 * time.Millisecond

// Abandon makes a call that may hang whatever its context says. If ctx ends first, Abandon returns the cause of its end
// and drops the result; the call goes on.
func Abandon[T any](ctx context.Context, call func(context.Context) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	answered := make(chan answer, 1) // buffered, so that a late answer does not block
	go func() {
		value, err := call(ctx)
		answered <- answer{value, err}
	}()
	select {
	case a := <-answered:
		return a.value, a.err
	case <-ctx.Done():
	}
	select { // it may have returned because of its context, with a better error
	case a := <-answered:
		return a.value, a.err
	case <-time.After(ReplyGrace):
		var none T
		return none, context.Cause(ctx)
	}
}
