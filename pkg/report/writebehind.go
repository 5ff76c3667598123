package report

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Store is a durable map of small values: a bucket of the agent's state file.
type Store interface {
	PutAll(values map[string][]byte) error // atomic; a nil value removes the key
	Delete(key string) error
	ForEach(f func(key string, value []byte) error) error
}

// WriteBehind writes to a store from its own goroutine: a reporter must still work if the disk hangs or is full. It
// writes only the newest value of a key.
type WriteBehind struct {
	store Store
	log   *slog.Logger
	wake  chan struct{} // size 1: signals that there is something to write
	first func()        // called before the first write; may be nil
	delay time.Duration // how long a value waits before it is written: if it is removed by then, the disk is not touched

	mu      sync.Mutex        // guards all below
	pending map[string][]byte // nil: to be deleted
	fresh   map[string]bool   // keys without a value in the store
}

const (
	// storeRetry is the time between attempts after the store failed.
	storeRetry = time.Minute
	// storeGrace is how long an exiting agent waits for a hung store.
	storeGrace = 2 * time.Second
)

// NewWriteBehind returns a writer to store. With a nil store it keeps no values.
func NewWriteBehind(store Store, log *slog.Logger) *WriteBehind {
	return &WriteBehind{store: store, log: log, wake: make(chan struct{}, 1), pending: map[string][]byte{},
		fresh: map[string]bool{}}
}

// Put stores value asynchronously. The value must not be modified afterwards.
func (w *WriteBehind) Put(key string, value []byte) { w.put(key, value, false) }

// Delete removes a key asynchronously.
func (w *WriteBehind) Delete(key string) { w.put(key, nil, false) }

// put stores value; fresh means that the store has none.
func (w *WriteBehind) put(key string, value []byte, fresh bool) {
	if w.store == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if fresh {
		w.fresh[key] = true
	}
	if value == nil && w.fresh[key] {
		delete(w.pending, key)
		delete(w.fresh, key)
		return
	}
	w.pending[key] = value
	Wake(w.wake)
}

// Start starts to write, until the returned function is called: it writes the remaining values and waits for the
// goroutine. It returns an error if the store hangs. The end of ctx alone does not stop it, since the last values come
// after that.
func (w *WriteBehind) Start(ctx context.Context) (stop func() error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1) // size 1: there is no receiver any more if a hung store returns late
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
	if w.first != nil {
		w.first()
	}
	failing := false
	due := time.NewTimer(w.delay)
	defer due.Stop()
	wake := w.wake
	for {
		select {
		case <-ctx.Done():
			return w.flush()
		case <-wake:
			wake = nil // only the timer wakes
			due.Reset(w.delay)
			continue
		case <-due.C:
			wake = w.wake
		}
		err := w.flush()
		if err != nil && !failing {
			w.log.Warn("store reports failed: a restart will lose them", "err", err)
		}
		if failing = err != nil; failing {
			wake = nil
			due.Reset(storeRetry)
		}
	}
}

// flush writes all pending values together. If that fails, the values that have no newer one stay pending.
func (w *WriteBehind) flush() error {
	w.mu.Lock()
	batch := w.pending
	w.pending = map[string][]byte{}
	clear(w.fresh)
	w.mu.Unlock()
	if len(batch) == 0 {
		return nil
	}
	err := w.store.PutAll(batch)
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		for key, value := range batch {
			if _, overtaken := w.pending[key]; !overtaken {
				w.pending[key] = value
			}
		}
	}
	return err
}
