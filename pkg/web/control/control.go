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

// Broken is a store that cannot be opened: every call fails with the reason.
type Broken struct{ Err error }

// Get implements Store.
func (b Broken) Get(context.Context, string, string) (Record, error) { return Record{}, b.Err }

// Put implements Store.
func (b Broken) Put(context.Context, string, string, []byte, uint64) (uint64, error) { return 0, b.Err }

// Delete implements Store.
func (b Broken) Delete(context.Context, string, string, uint64) error { return b.Err }

// List implements Store.
func (b Broken) List(context.Context, string, string) ([]Record, error) { return nil, b.Err }

// Close implements Store.
func (Broken) Close() error { return nil }
