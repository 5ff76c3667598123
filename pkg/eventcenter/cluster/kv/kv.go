// Package kv keeps the control store of several replicas in NATS JetStream, one key-value bucket for each bucket. The
// bucket's leader accepts a write only over the revision that the writer has read; Get may read from a replica that lags
// slightly: a write based on it gets ErrConflict, and the caller reads again. List has every write completed
// before it: otherwise a new worker would take a lagging replica for one without subscriptions.
package kv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
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
	// fence is a key that no record can have. List deletes it through the leader, and reads until it sees that.
	fence      = "=fence"
	listLimit  = 10 * time.Second // without an entry that a list needs
	retryEvery = 250 * time.Millisecond
)

// Store implements control.Store.
type Store struct {
	js        jetstream.JetStream
	replicas  int
	listLimit time.Duration

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
	return &Store{js: js, replicas: replicas, listLimit: listLimit, buckets: map[string]bucket{}}, err
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
	b.KeyValue, err = s.js.KeyValue(ctx, prefix+name)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		b.KeyValue, err = s.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: prefix + name, History: 1,
			Storage: jetstream.FileStorage, Replicas: s.replicas, LimitMarkerTTL: markers})
	}
	if err == nil {
		b.markers, err = s.endMarkers(ctx, b)
	}
	if err != nil {
		return bucket{}, fmt.Errorf("bucket %s: %w", name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buckets[name] = b
	return b, nil
}

// endMarkers returns how long a bucket keeps markers. It changes a bucket that would keep them for ever, and only that
// setting: the others may be the operator's.
func (s *Store) endMarkers(ctx context.Context, b bucket) (time.Duration, error) {
	status, err := b.Status(ctx)
	if err != nil {
		return 0, err
	}
	if kept := status.LimitMarkerTTL(); kept > 0 {
		return kept, nil
	}
	stream, err := s.js.Stream(ctx, "KV_"+b.Bucket())
	if err != nil {
		return 0, err
	}
	config := stream.CachedInfo().Config
	config.AllowMsgTTL, config.SubjectDeleteMarkerTTL = true, markers
	if _, err := s.js.UpdateStream(ctx, config); err != nil {
		return 0, nil //nolint:nilerr // these credentials may not change it: it works, and its markers stay
	}
	return markers, nil
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

// List implements control.Store. It fails if it waits for listLimit.
func (s *Store) List(ctx context.Context, bucket, begin string) ([]control.Record, error) {
	if err := control.Problem(bucket, "any", nil); err != nil {
		return nil, err
	}
	filter := ">"
	if strings.HasSuffix(begin, ".") && control.Problem(bucket, begin+"any", nil) == nil {
		filter = begin + ">"
	}
	entries, err := s.list(ctx, bucket, filter)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", bucket, err)
	}
	var found []control.Record
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		if e := entries[key]; strings.HasPrefix(key, begin) && e.Operation() == jetstream.KeyValuePut {
			found = append(found, control.Record{Key: key, Value: e.Value(), Revision: e.Revision()})
		}
	}
	return found, nil
}

// list returns the latest entry of each key of a bucket that a filter selects, and maybe of the fence. A key that is
// written while it reads moves to the end: when it has read the rest, it waits for those that it has not seen.
func (s *Store) list(ctx context.Context, bucket, filter string) (map[string]jetstream.KeyValueEntry, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := time.AfterFunc(s.listLimit, func() { cancel(context.DeadlineExceeded) })
	defer limit.Stop()
	b, err := s.bucket(ctx, bucket)
	var end uint64
	if err == nil {
		end, err = s.end(ctx, b, filter)
	}
	var w jetstream.KeyWatcher
	if err == nil {
		keys := []string{filter, fence}
		if filter == ">" {
			keys = keys[:1] // they may not overlap
		}
		w, err = b.WatchFiltered(ctx, keys)
	}
	if err != nil {
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	defer func() {
		_ = w.Stop()
		go func() { // the watcher may be about to send more than it has room for
			for range w.Updates() {
			}
		}()
	}()
	entries := map[string]jetstream.KeyValueEntry{}
	var missing map[string]bool // nil: the rest is not read yet
	for initial, caughtUp := false, end == 0; missing == nil || len(missing) > 0; {
		select {
		case e, ok := <-w.Updates():
			if missing == nil || e != nil && missing[e.Key()] { // others may come without end
				limit.Reset(s.listLimit)
			}
			switch {
			case !ok:
				return nil, cmp.Or(context.Cause(ctx), errors.New("the connection ended"))
			case e == nil: // the end of the entries that the replica had
				initial = true
			default:
				entries[e.Key()] = e
				delete(missing, e.Key())
				caughtUp = caughtUp || e.Revision() >= end
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("read up to revision %d: %w", end, context.Cause(ctx))
		}
		if initial && caughtUp && missing == nil {
			if missing, err = s.missing(ctx, b, filter, entries); err != nil {
				return nil, cmp.Or(context.Cause(ctx), err)
			}
		}
	}
	return entries, nil
}

// end returns the revision up to which a list must read: that of a new fence. If the leader refuses the fence, as it does
// without space, it is that of the leader's newest message that the filter selects, 0 if there is none. Only the fence
// proves that a majority follows this leader: one that is cut off may miss the writes of up to 20 s, until it notices that.
func (s *Store) end(ctx context.Context, b bucket, filter string) (uint64, error) {
	m := nats.NewMsg("$KV." + b.Bucket() + "." + fence)
	m.Header.Set("KV-Operation", "DEL")
	ack, err := s.js.PublishMsg(ctx, m)
	if err == nil {
		return ack.Sequence, nil
	}
	if _, refused := errors.AsType[*jetstream.APIError](err); !refused {
		return 0, err
	}
	js, err := s.js.Conn().JetStream() // this interface asks the leader, the other any replica
	if err != nil {
		return 0, err
	}
	for {
		newest, err := js.GetLastMsg("KV_"+b.Bucket(), "$KV."+b.Bucket()+"."+filter, nats.Context(ctx))
		if err == nil {
			return newest.Sequence, nil
		}
		if errors.Is(err, nats.ErrMsgNotFound) {
			return 0, nil
		}
		e, ok := errors.AsType[*nats.APIError](err)
		if !ok || e.ErrorCode != nats.JSErrCodeJetStreamNotAvailable { // it has no leader now
			return 0, err
		}
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
			return 0, err
		}
	}
}

// missing returns the leader's keys that the filter selects and that are not among the entries.
func (s *Store) missing(ctx context.Context, b bucket, filter string, entries map[string]jetstream.KeyValueEntry) (
	map[string]bool, error) {
	stream, err := s.js.Stream(ctx, "KV_"+b.Bucket())
	if err != nil {
		return nil, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter("$KV."+b.Bucket()+"."+filter))
	if err != nil {
		return nil, err
	}
	missing := map[string]bool{}
	for subject := range info.State.Subjects {
		if key := strings.TrimPrefix(subject, "$KV."+b.Bucket()+"."); entries[key] == nil {
			missing[key] = true
		}
	}
	return missing, nil
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
