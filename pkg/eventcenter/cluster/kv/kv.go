// Package kv keeps the control store of several replicas in NATS JetStream, one key-value bucket for each bucket. The
// bucket's leader accepts a write only over the revision that the writer has read; a read may come from a replica that
// lags slightly: a write based on it gets ErrConflict, and the caller reads again.
package kv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/nodeagent/nodeagent/pkg/web/control"
)

const (
	prefix = "EVENTCENTER-CONTROL-"
	// markers is how long a bucket keeps deletion markers: otherwise those of sessions would accumulate for ever.
	markers = time.Hour
)

// Store implements control.Store.
type Store struct {
	js       jetstream.JetStream
	replicas int

	mu      sync.Mutex // guards the fields below
	buckets map[string]bucket
}

// bucket is a bucket whose markers expire, unless it is older than this feature and its server refuses to change it.
type bucket struct {
	jetstream.KeyValue
	markers time.Duration
}

// Open returns the store on a connection. replicas is the number of servers of which a majority must accept a write.
func Open(conn *nats.Conn, replicas int) (*Store, error) {
	js, err := jetstream.New(conn)
	return &Store{js: js, replicas: replicas, buckets: map[string]bucket{}}, err
}

// bucket finds a bucket, or creates it.
func (s *Store) bucket(ctx context.Context, name string) (bucket, error) {
	s.mu.Lock()
	known, ok := s.buckets[name]
	s.mu.Unlock()
	if ok {
		return known, nil
	}
	var b bucket
	var err error
	b.KeyValue, err = s.js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: prefix + name, History: 1,
		Storage: jetstream.FileStorage, Replicas: s.replicas, LimitMarkerTTL: markers})
	if err != nil { // these credentials may not change it: it works, and its markers stay
		b.KeyValue, err = s.js.KeyValue(ctx, prefix+name)
	}
	var status jetstream.KeyValueStatus
	if err == nil {
		status, err = b.Status(ctx)
	}
	if err != nil {
		return bucket{}, fmt.Errorf("bucket %s: %w", name, err)
	}
	b.markers = status.LimitMarkerTTL()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buckets[name] = b
	return b, nil
}

// Get implements control.Store.
func (s *Store) Get(ctx context.Context, bucket, key string) (control.Record, error) {
	if err := control.Problem(bucket, key, nil); err != nil {
		return control.Record{}, err
	}
	b, err := s.bucket(ctx, bucket)
	if err != nil {
		return control.Record{}, err
	}
	e, err := b.Get(ctx, key)
	if err != nil {
		return control.Record{}, translated(bucket, key, err)
	}
	return control.Record{Key: key, Value: e.Value(), Revision: e.Revision()}, nil
}

// Put implements control.Store.
func (s *Store) Put(ctx context.Context, bucket, key string, value []byte, revision uint64) (uint64, error) {
	if err := control.Problem(bucket, key, value); err != nil {
		return 0, err
	}
	b, err := s.bucket(ctx, bucket)
	if err != nil {
		return 0, err
	}
	if revision == 0 {
		revision, err = b.Create(ctx, key, value)
	} else {
		revision, err = b.Update(ctx, key, value, revision)
	}
	return revision, translated(bucket, key, err)
}

// Delete implements control.Store.
func (s *Store) Delete(ctx context.Context, bucket, key string, revision uint64) error {
	there, err := s.Get(ctx, bucket, key)
	if err != nil {
		return err
	}
	if revision == 0 || there.Revision != revision {
		return fmt.Errorf("%s/%s: %w", bucket, key, control.ErrConflict)
	}
	b, err := s.bucket(ctx, bucket)
	if err != nil {
		return err
	}
	if b.markers == 0 {
		return translated(bucket, key, b.KeyValue.Delete(ctx, key, jetstream.LastRevision(revision)))
	}
	return translated(bucket, key, b.Purge(ctx, key, jetstream.LastRevision(revision), jetstream.PurgeTTL(b.markers)))
}

// List implements control.Store.
func (s *Store) List(ctx context.Context, bucket, begin string) (found []control.Record, err error) {
	if err := control.Problem(bucket, "any", nil); err != nil {
		return nil, err
	}
	b, err := s.bucket(ctx, bucket)
	if err != nil {
		return nil, err
	}
	w, err := b.WatchAll(ctx, jetstream.IgnoreDeletes())
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", bucket, err)
	}
	defer w.Stop() // all entries are read
	for {
		select {
		case e, ok := <-w.Updates():
			if !ok {
				return nil, fmt.Errorf("list %s: the connection ended", bucket)
			}
			if e == nil { // the end of the existing entries
				slices.SortFunc(found, func(x, y control.Record) int { return strings.Compare(x.Key, y.Key) })
				return found, nil
			}
			if strings.HasPrefix(e.Key(), begin) {
				found = append(found, control.Record{Key: e.Key(), Value: e.Value(), Revision: e.Revision()})
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("list %s: %w", bucket, ctx.Err())
		}
	}
}

// Close implements control.Store. The caller of Open closes the connection.
func (s *Store) Close() error { return nil }

func translated(bucket, key string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jetstream.ErrKeyNotFound), errors.Is(err, jetstream.ErrKeyDeleted):
		err = control.ErrNotFound
	case errors.Is(err, jetstream.ErrKeyExists):
		err = control.ErrConflict
	}
	return fmt.Errorf("%s/%s: %w", bucket, key, err)
}
