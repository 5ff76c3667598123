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
	PutAll(values map[string][]byte) error // together; nil removes
	Delete(key string) error
	ForEach(f func(key string, value []byte) error) error
}

// WriteBehind writes to a store from a goroutine of its own: a disk that hangs or is full must not keep a reporter from
// reporting just that. Only the newest value of a key is written.
type WriteBehind struct {
	store Store
	log   *slog.Logger
	wake  chan struct{} // size 1: that there is something to write, not what
	first func()        // is done before anything is written; may be nil
	delay time.Duration // how long a value waits: if it is removed meanwhile, the disk is left alone

	mu      sync.Mutex        // guards all below
	pending map[string][]byte // nil: to be deleted
	fresh   map[string]bool   // of these the store has no value
}

const (
	// storeRetry is how long a store that failed is left alone.
	storeRetry = time.Minute
	// storeGrace is how long an agent that ends waits for a store that hangs.
	storeGrace = 2 * time.Second
)

// NewWriteBehind returns a writer to store. A nil store means that nothing is kept.
func NewWriteBehind(store Store, log *slog.Logger) *WriteBehind {
	return &WriteBehind{store: store, log: log, wake: make(chan struct{}, 1), pending: map[string][]byte{},
		fresh: map[string]bool{}}
}

// Put stores value, soon. The value must not be modified afterwards.
func (w *WriteBehind) Put(key string, value []byte) { w.put(key, value, false) }

// Delete removes a key, soon.
func (w *WriteBehind) Delete(key string) { w.put(key, nil, false) }

// put stores value; fresh says that the store has none.
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
			wake = nil // the timer alone wakes
			due.Reset(w.delay)
			continue
		case <-due.C:
			wake = w.wake
		}
		err := w.flush()
		if err != nil && !failing {
			w.log.Warn("reports are not stored, they will not survive a restart", "err", err)
		}
		if failing = err != nil; failing {
			wake = nil
			due.Reset(storeRetry)
		}
	}
}

// flush writes all that is pending, together. If it cannot be written, all stays pending that was not overtaken.
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
