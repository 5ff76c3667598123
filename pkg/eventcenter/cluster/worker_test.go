package cluster

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// fullBucket refuses to renew a key at once, and later does not answer.
type fullBucket struct {
	jetstream.KeyValue
	begun time.Time
}

func (b fullBucket) Update(ctx context.Context, _ string, _ []byte, _ uint64) (uint64, error) {
	if time.Since(b.begun) < leaveAfter {
		return 0, &jetstream.APIError{Code: 503, ErrorCode: 10023, Description: "insufficient resources"}
	}
	<-ctx.Done()
	return 0, ctx.Err()
}

// A worker whose key cannot be renewed stops before another replica can be the worker.
func TestWorkerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var worked time.Duration
		w := &Worker{Name: "one", Log: slog.New(slog.DiscardHandler), Work: func(ctx context.Context, _ uint64) error {
			<-ctx.Done()
			worked = time.Since(begun)
			return context.Cause(ctx)
		}}
		err := w.hold(t.Context(), fullBucket{begun: begun}, 1)
		if _, refused := errors.AsType[*jetstream.APIError](err); !refused || worked > leaveAfter {
			t.Errorf("it stopped after %s, want at most %s: %v", worked, leaveAfter, err)
		}
	})
}
