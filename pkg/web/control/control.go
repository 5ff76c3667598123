// Package control defines the store for data that cannot be rebuilt, such as sessions, subscriptions with their cursors
// and dead letters, and the audit of changes: small values under keys, each written as a whole, durably, and only by a
// writer that knows the previous value. Implementations are in packages of their own, so that programs link only the one
// that they use.
package control

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
)

// Record is a value under its key.
type Record struct {
	Key      string
	Value    []byte
	Revision uint64 // of this value: it grows with each write in the bucket, and is never reused
}

// Store keeps records in buckets. Completed calls are durable. It is safe for concurrent use, also by several processes
// if they share the implementation.
type Store interface {
	// Get returns the record under a key; ErrNotFound if there is none.
	Get(ctx context.Context, bucket, key string) (Record, error)
	// Put writes a value and returns its revision. Revision 0 creates; any other must be the current. Else ErrConflict.
	Put(ctx context.Context, bucket, key string, value []byte, revision uint64) (uint64, error)
	// Delete removes a record. The revision must be the current one, else ErrConflict; ErrNotFound if there is none.
	Delete(ctx context.Context, bucket, key string, revision uint64) error
	// List returns the records whose keys have a prefix, in the order of their keys.
	List(ctx context.Context, bucket, prefix string) ([]Record, error)
	Close() error
}

var (
	// ErrNotFound means that the record does not exist.
	ErrNotFound = errors.New("there is no such record")
	// ErrConflict means that another writer has changed the record since the caller read it.
	ErrConflict = errors.New("the record was changed by somebody else")
)

// MaxValue limits a value, in bytes. It leaves room for headers in a NATS message of 1 MiB, the servers' default limit.
const MaxValue = 768 << 10

const maxKey = 255 // bytes

var (
	bucketName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	keyName    = regexp.MustCompile(`^[a-zA-Z0-9_-]+(\.[a-zA-Z0-9_-]+)*$`) // accepted by NATS key-value buckets too

)

// Problem returns the first error in a name or value, before it is written. Every implementation calls it.
func Problem(bucket, key string, value []byte) error {
	switch {
	case !bucketName.MatchString(bucket):
		return fmt.Errorf("bucket %.64q: want lower-case letters, digits and '-', at most 32", bucket)
	case len(key) > maxKey || !keyName.MatchString(key):
		return fmt.Errorf("key %.255q: want letters, digits, '_' and '-', with dots between, at most %d", key, maxKey)
	case len(value) > MaxValue:
		return fmt.Errorf("%s/%s: %d bytes, %d are possible", bucket, key, len(value), MaxValue)
	}
	return nil
}

// Late is a store that may not be usable yet: until Try has opened it, every call fails with the reason.
type Late struct {
	Open func(context.Context) (Store, error)

	mu    sync.RWMutex // guards the fields below
	store Store        // nil: not open
	err   error        // of the last attempt
}

// Try opens the store, again if it is open: the file may have been replaced. One goroutine at a time may call it.
func (l *Late) Try(ctx context.Context) error {
	_ = l.Close() // it could not be used
	store, err := l.Open(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.store, l.err = nil, err
	if err == nil {
		l.store = store
	}
	return err
}

func (l *Late) get() (Store, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.store, l.err
}

// Get implements Store.
func (l *Late) Get(ctx context.Context, bucket, key string) (Record, error) {
	store, err := l.get()
	if err != nil {
		return Record{}, err
	}
	return store.Get(ctx, bucket, key)
}

// Put implements Store.
func (l *Late) Put(ctx context.Context, bucket, key string, value []byte, revision uint64) (uint64, error) {
	store, err := l.get()
	if err != nil {
		return 0, err
	}
	return store.Put(ctx, bucket, key, value, revision)
}

// Delete implements Store.
func (l *Late) Delete(ctx context.Context, bucket, key string, revision uint64) error {
	store, err := l.get()
	if err != nil {
		return err
	}
	return store.Delete(ctx, bucket, key, revision)
}

// List implements Store.
func (l *Late) List(ctx context.Context, bucket, prefix string) ([]Record, error) {
	store, err := l.get()
	if err != nil {
		return nil, err
	}
	return store.List(ctx, bucket, prefix)
}

// Close implements Store.
func (l *Late) Close() error {
	if store, _ := l.get(); store != nil {
		return store.Close()
	}
	return nil
}
