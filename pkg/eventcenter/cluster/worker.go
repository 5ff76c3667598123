package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	workerBucket = "EVENTCENTER-WORKER"
	workerKey    = "worker"

	leaseTime  = 15 * time.Second // of the key: afterwards, another replica may be the worker
	renewEvery = 4 * time.Second
	// leaveAfter is how long after its last renewal a worker stops, by its own clock: before another can start.
	leaveAfter = leaseTime - 5*time.Second
	askLimit   = 3 * time.Second
)

// Worker elects the only replica that delivers, judges silence, infers and trims: it holds a key with a time to live.
type Worker struct {
	Node *Node
	Name string // of this replica
	Log  *slog.Logger

	// Work starts when this replica becomes the worker, and ends with ctx. term is the revision of the key: larger than
	// any earlier worker's.
	Work func(ctx context.Context, term uint64) error
}

// Run stands for election until ctx ends.
func (w *Worker) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		bucket, revision, err := w.acquire(ctx)
		if err == nil {
			w.Log.Info("this replica is the worker", "term", revision)
			err = w.hold(ctx, bucket, revision)
			w.Log.Info("this replica is no longer the worker", "term", revision, "err", err)
		} else if !errors.Is(err, jetstream.ErrKeyExists) && ctx.Err() == nil {
			w.Log.Debug("elect the worker failed", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(renewEvery):
		}
	}
	return nil
}

func (w *Worker) acquire(ctx context.Context) (jetstream.KeyValue, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	js, err := jetstream.New(w.Node.Conn)
	if err != nil {
		return nil, 0, err
	}
	bucket, err := js.KeyValue(ctx, workerBucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		bucket, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: workerBucket, TTL: leaseTime, History: 1,
			Storage: jetstream.FileStorage, Replicas: Peers})
	}
	if err != nil {
		return nil, 0, err
	}
	revision, err := bucket.Create(ctx, workerKey, []byte(w.Name))
	return bucket, revision, err
}

// hold runs Work while the key is renewed. It ends with Work.
func (w *Worker) hold(ctx context.Context, bucket jetstream.KeyValue, term uint64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- w.Work(ctx, term) }()
	renewed, revision := time.Now(), term
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	var failed error = context.DeadlineExceeded // of the last renewal that failed
	for {
		select {
		case err := <-done:
			w.release(ctx, bucket, revision)
			return err
		case <-time.After(time.Until(renewed.Add(leaveAfter))):
			cancel(fmt.Errorf("the key could not be renewed: %w", failed))
			return <-done
		case <-tick.C:
		}
		begun := time.Now()
		limited, stop := context.WithTimeout(ctx, min(askLimit, time.Until(renewed.Add(leaveAfter))))
		next, err := bucket.Update(limited, workerKey, []byte(w.Name), revision)
		stop()
		switch {
		case err == nil:
			renewed, revision = begun, next
		case errors.Is(err, jetstream.ErrKeyExists):
			cancel(fmt.Errorf("the key is another's: %w", err))
			return <-done
		default:
			failed = err
		}
	}
}

// release deletes the key, so that another replica need not wait for its expiry.
func (w *Worker) release(ctx context.Context, bucket jetstream.KeyValue, revision uint64) {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), askLimit)
	defer cancel()
	if err := bucket.Delete(limited, workerKey, jetstream.LastRevision(revision)); err != nil {
		w.Log.Debug("release the worker's key failed: it ends by itself", "err", err)
	}
}
