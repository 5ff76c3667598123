// Package control holds what an event center remembers that is not derived from its journal: subscriptions, how far each
// of them is, dead letters, and who changed what. It is never rebuilt, so it is a store of its own: small values under
// keys, each written whole, durable, and only by whom has seen the value before. What implements it is in packages of
// their own, so that nothing else links them.
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
	Revision uint64 // of this value: it grows with each write in the bucket, and is never given twice
}

// Store keeps records in buckets. All that a call has returned without an error is durable. It is safe for concurrent use,
// also by several processes where the implementation is shared by them.
type Store interface {
	// Get returns the record under a key; ErrNotFound where there is none.
	Get(ctx context.Context, bucket, key string) (Record, error)
	// Put writes a value and returns its revision. Revision 0 creates; any other must be the current one. Else ErrConflict.
	Put(ctx context.Context, bucket, key string, value []byte, revision uint64) (uint64, error)
	// Delete removes a record. The revision must be the current one, else ErrConflict; ErrNotFound where there is none.
	Delete(ctx context.Context, bucket, key string, revision uint64) error
	// List returns the records whose keys begin with a prefix, in the order of their keys.
	List(ctx context.Context, bucket, prefix string) ([]Record, error)
	Close() error
}

var (
	// ErrNotFound means that there is no such record.
	ErrNotFound = errors.New("there is no such record")
	// ErrConflict means that the record is not the one that the caller has seen: somebody else wrote it.
	ErrConflict = errors.New("the record was changed by somebody else")
)

// MaxValue bounds a value, in bytes. It leaves room for the head of a message of 1 MiB, which is what a server of NATS takes.
const MaxValue = 768 << 10

const maxKey = 255 // bytes

var (
	bucketName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	keyName    = regexp.MustCompile(`^[a-zA-Z0-9_-]+(\.[a-zA-Z0-9_-]+)*$`) // what a key-value bucket of NATS takes too

)

// Problem returns what is wrong with a name or a value, before anything is written. Every implementation asks it.
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
