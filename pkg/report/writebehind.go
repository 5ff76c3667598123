package report

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
)

// Store is a durable map of small values: a bucket of the agent's state file.
type Store interface {
	Put(key string, value []byte) error
	Delete(key string) error
	ForEach(f func(key string, value []byte) error) error
}

// WriteBehind writes to a store from a goroutine of its own: a disk that hangs or is full must not keep a reporter from
// reporting just that. Only the newest value of a key is written.
type WriteBehind struct {
	store Store
	log   *slog.Logger
	wake  chan struct{} // size 1: that there is something to write, not what

	mu      sync.Mutex        // guards pending
	pending map[string][]byte // nil: to be deleted
}

const (
	// storeRetry is how long a store that failed is left alone.
	storeRetry = time.Minute
	// storeGrace is how long an agent that ends waits for a store that hangs.
	storeGrace = 2 * time.Second
)

// NewWriteBehind returns a writer to store. A nil store means that nothing is kept.
func NewWriteBehind(store Store, log *slog.Logger) *WriteBehind {
	return &WriteBehind{store: store, log: log, wake: make(chan struct{}, 1), pending: map[string][]byte{}}
}

// Put stores value, soon. The value must not be modified afterwards.
func (w *WriteBehind) Put(key string, value []byte) { w.set(key, value) }

// Delete removes a key, soon.
func (w *WriteBehind) Delete(key string) { w.set(key, nil) }

func (w *WriteBehind) set(key string, value []byte) {
	if w.store == nil {
		return
	}
	w.mu.Lock()
	w.pending[key] = value
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default: // it is awake already
	}
}

// Start begins to write, until the returned function is called: it writes what is left and waits until the goroutine
// has ended. It returns an error where the store hangs. The end of ctx alone does not end it, since the last
// values come after that.
func (w *WriteBehind) Start(ctx context.Context) (stop func() error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1) // size 1: it is not received any more when a hung store comes back late
	go func() { done <- w.run(ctx) }()
	return func() error {
		cancel()
		timer := time.NewTimer(storeGrace)
		defer timer.Stop()
		select {
		case err := <-done:
			return err
		case <-timer.C:
			return fmt.Errorf("state not stored: the store has hung for %s", storeGrace)
		}
	}
}

func (w *WriteBehind) run(ctx context.Context) error {
	failing := false
	retry := time.NewTimer(storeRetry)
	defer retry.Stop()
	for {
		err := w.flush()
		if err != nil && !failing {
			w.log.Warn("reports are not stored, they will not survive a restart", "err", err)
		}
		failing = err != nil
		wake := w.wake
		if failing {
			wake = nil // the retry alone wakes
			retry.Reset(storeRetry)
		}
		select {
		case <-ctx.Done():
			return w.flush()
		case <-wake:
		case <-retry.C: // harmless where nothing failed: there is nothing to write
		}
	}
}

// flush writes all that is pending. What cannot be written stays pending, unless it was overtaken.
func (w *WriteBehind) flush() error {
	w.mu.Lock()
	batch := w.pending
	w.pending = map[string][]byte{}
	w.mu.Unlock()
	var first error
	for _, key := range slices.Sorted(maps.Keys(batch)) {
		err := w.write(key, batch[key])
		if err == nil {
			continue
		}
		if first == nil {
			first = err
		}
		w.mu.Lock()
		if _, overtaken := w.pending[key]; !overtaken {
			w.pending[key] = batch[key]
		}
		w.mu.Unlock()
	}
	return first
}

func (w *WriteBehind) write(key string, value []byte) error {
	if value == nil {
		return w.store.Delete(key)
	}
	return w.store.Put(key, value)
}
