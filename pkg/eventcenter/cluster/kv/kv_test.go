package kv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/cluster"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/cluster/clustertest"
	"github.com/nodeagent/nodeagent/pkg/web/control"
	"github.com/nodeagent/nodeagent/pkg/web/control/controltest"
)

func TestStore(t *testing.T) {
	nodes := map[string]*cluster.Node{}
	controltest.Run(t, func(t *testing.T) control.Store {
		t.Helper()
		node := nodes[t.Name()]
		if node == nil {
			var err error
			node, err = cluster.Start(cluster.Config{Name: "one", Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
			must(t, err)
			t.Cleanup(node.Close)
			nodes[t.Name()] = node
		}
		s, err := Open(node.Conn, 1)
		must(t, err)
		return s
	})
}

// Deletion markers expire, even in a bucket created without that; a key created again stays.
func TestMarkersEnd(t *testing.T) {
	s, ctx := opened(t), t.Context()
	if _, err := s.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: prefix + "sessions", History: 1}); err != nil {
		t.Fatal(err)
	}
	if b, err := s.bucket(ctx, "sessions"); err != nil || b.markers != markers {
		t.Fatalf("%s, %v", b.markers, err)
	}
	if b, err := s.bucket(ctx, "new"); err != nil || b.markers != markers {
		t.Fatalf("%s, %v", b.markers, err)
	}
	b := s.buckets["sessions"]
	b.markers = time.Second
	s.buckets["sessions"] = b
	for _, key := range []string{"a", "b", "again"} {
		revision, err := s.Put(ctx, "sessions", key, []byte(key), 0)
		must(t, err)
		must(t, s.Delete(ctx, "sessions", key, revision))
	}
	if _, err := s.Put(ctx, "sessions", "again", nil, 0); err != nil {
		t.Fatal(err)
	}
	stream, err := s.js.Stream(ctx, "KV_"+prefix+"sessions")
	must(t, err)
	left := uint64(0)
	for range 600 {
		info, err := stream.Info(ctx)
		must(t, err)
		if left = info.State.Msgs; left == 1 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if left != 1 {
		t.Errorf("%d messages are left, want that of the key that lives", left)
	}
	if records, err := s.List(ctx, "sessions", ""); err != nil || len(records) != 1 || records[0].Key != "again" {
		t.Errorf("%v, %v", records, err)
	}
}

// The settings that an operator gave a bucket stay, except that markers end.
func TestSettingsStay(t *testing.T) {
	s := opened(t)
	for name, kept := range map[string]time.Duration{"cursors": 0, "audit": 2 * time.Hour} {
		before := jetstream.KeyValueConfig{Bucket: prefix + name, History: 1, Description: "of the operator",
			MaxBytes: 1 << 20, LimitMarkerTTL: kept}
		kv, err := s.js.CreateKeyValue(t.Context(), before)
		must(t, err)
		want := cmp.Or(kept, markers)
		if b, err := s.bucket(t.Context(), name); err != nil || b.markers != want {
			t.Errorf("%s: %s, %v", name, b.markers, err)
		}
		status, err := kv.Status(t.Context())
		must(t, err)
		c := status.Config()
		if c.Description != before.Description || c.MaxBytes != before.MaxBytes || c.LimitMarkerTTL != want {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// changed is a bucket whose entries pass through a function.
type changed struct {
	jetstream.KeyValue
	pass func(from <-chan jetstream.KeyValueEntry, to chan<- jetstream.KeyValueEntry)
}

type changedWatcher struct {
	jetstream.KeyWatcher
	updates chan jetstream.KeyValueEntry
}

func (w changedWatcher) Updates() <-chan jetstream.KeyValueEntry { return w.updates }

func (c changed) WatchFiltered(ctx context.Context, keys []string, o ...jetstream.WatchOpt) (jetstream.KeyWatcher, error) {
	w, err := c.KeyValue.WatchFiltered(ctx, keys, o...)
	if err != nil {
		return nil, err
	}
	passed := changedWatcher{w, make(chan jetstream.KeyValueEntry, 10)} // more than there are
	go func() {
		defer close(passed.updates)
		c.pass(w.Updates(), passed.updates)
	}()
	return passed, nil
}

// A list has everything that was written before, even if the answering replica lags; if it does not catch
// up, that is an error, not an empty list.
func TestListOfLaggingReplica(t *testing.T) {
	s := opened(t)
	for _, key := range []string{"x.b", "x.a", "x.gone", "y.c"} {
		revision, err := s.Put(t.Context(), "subscriptions", key, []byte(key), 0)
		must(t, err)
		if key == "x.gone" {
			must(t, s.Delete(t.Context(), "subscriptions", key, revision))
		}
	}
	b := s.buckets["subscriptions"]
	var never atomic.Bool
	lags := func(from <-chan jetstream.KeyValueEntry, to chan<- jetstream.KeyValueEntry) {
		to <- nil // the end of the existing entries
		for e := range from {
			if e != nil && !never.Load() {
				to <- e
			}
		}
	}
	s.buckets["subscriptions"] = bucket{changed{b.KeyValue, lags}, b.markers}
	for prefix, want := range map[string]int{"": 3, "x.": 2, "x": 2} {
		records, err := s.List(t.Context(), "subscriptions", prefix)
		if err != nil || len(records) != want || records[0].Key != "x.a" || string(records[1].Value) != "x.b" {
			t.Errorf("%q: %v, %v", prefix, records, err)
		}
	}
	never.Store(true)
	s.listLimit = 200 * time.Millisecond
	for _, prefix := range []string{"", "x.", "none."} {
		if records, err := s.List(t.Context(), "subscriptions", prefix); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%q: %v, %v", prefix, records, err)
		}
	}
}

// A list contains a key written again in its moment: its entry comes after the end of the others.
func TestListOfMovingKey(t *testing.T) {
	s := opened(t)
	for _, key := range []string{"x.moved", "x.other"} {
		_, err := s.Put(t.Context(), "cursors", key, []byte(key), 0)
		must(t, err)
	}
	b := s.buckets["cursors"]
	moves := func(from <-chan jetstream.KeyValueEntry, to chan<- jetstream.KeyValueEntry) {
		var moved jetstream.KeyValueEntry
		for e := range from {
			if e != nil && e.Key() == "x.moved" {
				moved = e
				continue
			}
			if to <- e; e == nil {
				to <- moved
			}
		}
	}
	s.buckets["cursors"] = bucket{changed{b.KeyValue, moves}, b.markers}
	for _, prefix := range []string{"", "x."} {
		records, err := s.List(t.Context(), "cursors", prefix)
		if err != nil || len(records) != 2 || records[0].Key != "x.moved" {
			t.Errorf("%q: %v, %v", prefix, records, err)
		}
	}
}

// A list of the keys of one subscription reads those alone.
func TestListOfOne(t *testing.T) {
	s := opened(t)
	for _, key := range []string{"other.1", "a.1", "other.2", "other.3", "a.2"} {
		_, err := s.Put(t.Context(), "dead-letters", key, make([]byte, 1<<18), 0)
		must(t, err)
	}
	before := s.js.Conn().Stats().InBytes
	records, err := s.List(t.Context(), "dead-letters", "a.")
	if err != nil || len(records) != 2 || records[0].Key != "a.1" || records[1].Key != "a.2" {
		t.Errorf("%d records, %v", len(records), err)
	}
	if read := s.js.Conn().Stats().InBytes - before; read > 3<<18 {
		t.Errorf("%d bytes read", read)
	}
}

// slow is a server whose entries come one by one, each within the limit; without end if its keys do not.
type slow struct {
	jetstream.JetStream
	endless bool
	sent    *atomic.Uint64
}

type slowStream struct {
	jetstream.Stream
	slow
}

type slowBucket struct {
	jetstream.KeyValue
	slow
}

type slowEntry struct {
	jetstream.KeyValueEntry
	revision uint64
}

const slowEntries = 20

func (slow) PublishMsg(context.Context, *nats.Msg, ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	return &jetstream.PubAck{Sequence: slowEntries}, nil
}

func (s slow) Stream(context.Context, string) (jetstream.Stream, error) {
	return slowStream{nil, s}, nil
}

// Info names the next key, too, if they do not end.
func (s slowStream) Info(context.Context, ...jetstream.StreamInfoOpt) (*jetstream.StreamInfo, error) {
	subjects := map[string]uint64{}
	for i := range s.sent.Load() {
		subjects[fmt.Sprint("$KV.dead-letters.", i+1)] = 1
	}
	if s.endless {
		subjects[fmt.Sprint("$KV.dead-letters.", s.sent.Load()+1)] = 1
	}
	return &jetstream.StreamInfo{State: jetstream.StreamState{Subjects: subjects}}, nil
}

func (s slowBucket) WatchFiltered(ctx context.Context, _ []string, _ ...jetstream.WatchOpt) (jetstream.KeyWatcher, error) {
	updates := make(chan jetstream.KeyValueEntry, 1)
	go func() {
		defer close(updates)
		for s.endless || s.sent.Load() < slowEntries {
			select {
			case <-time.After(listLimit * 3 / 4):
			case <-ctx.Done():
				return
			}
			updates <- slowEntry{revision: s.sent.Add(1)}
			if s.sent.Load() == slowEntries {
				updates <- nil
			}
		}
		<-ctx.Done()
	}()
	return changedWatcher{slowWatcher{}, updates}, nil
}

func (slowBucket) Bucket() string { return "dead-letters" }

// slowWatcher only stops.
type slowWatcher struct{ jetstream.KeyWatcher }

func (slowWatcher) Stop() error { return nil }

func (e slowEntry) Key() string                   { return fmt.Sprint(e.revision) }
func (slowEntry) Value() []byte                   { return nil }
func (e slowEntry) Revision() uint64              { return e.revision }
func (slowEntry) Operation() jetstream.KeyValueOp { return jetstream.KeyValuePut }

// A long list may take as long as its entries come, but ends although new keys come without end.
func TestLongList(t *testing.T) {
	for _, endless := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			server := slow{endless: endless, sent: &atomic.Uint64{}}
			s := &Store{js: server, listLimit: listLimit,
				buckets: map[string]bucket{"dead-letters": {KeyValue: slowBucket{nil, server}}}}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			if records, err := s.List(ctx, "dead-letters", ""); err != nil || len(records) < slowEntries {
				t.Errorf("endless %t: %d records, %v", endless, len(records), err)
			}
		})
	}
}

// A bucket without space for one more message is listed whole, by each of three replicas.
func TestListWithoutSpace(t *testing.T) {
	stores := replicas(t)
	ctx := t.Context()
	for created := false; !created; { // a cluster needs some seconds for its first leader
		limited, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := stores[0].js.CreateKeyValue(limited, jetstream.KeyValueConfig{Bucket: prefix + "subscriptions", History: 1,
			MaxBytes: 1 << 10, Replicas: cluster.Peers, LimitMarkerTTL: markers})
		cancel()
		created = err == nil || errors.Is(err, jetstream.ErrBucketExists)
	}
	var written []string
	for refused := false; !refused; {
		key := fmt.Sprintf("a.%04d", len(written))
		_, err := stores[len(written)%3].Put(ctx, "subscriptions", key, make([]byte, 100), 0)
		if err == nil || errors.Is(err, control.ErrConflict) { // the answer to the first attempt was lost
			written = append(written, key)
		}
		_, refused = errors.AsType[*jetstream.APIError](err)
	}
	for i, err := 0, error(nil); err == nil; i++ { // smaller than a fence
		m := nats.NewMsg(fmt.Sprint("$KV.", prefix, "subscriptions.", i))
		m.Header.Set("KV-Operation", "DEL")
		_, err = stores[0].js.PublishMsg(ctx, m)
	}
	for i, s := range stores {
		for prefix, want := range map[string][]string{"": written, "a.": written, "none.": nil} {
			records, err := s.List(ctx, "subscriptions", prefix)
			var got []string
			for _, r := range records {
				got = append(got, r.Key)
			}
			if !slices.Equal(got, want) || err != nil {
				t.Errorf("replica %d lists %q as %v, want %v: %v", i, prefix, got, want, err)
			}
		}
	}
}

// replicas returns the stores of three replicas.
func replicas(t *testing.T) (stores [cluster.Peers]*Store) {
	t.Helper()
	n := clustertest.New(t)
	var all sync.WaitGroup
	for i := range stores {
		dir := t.TempDir()
		all.Go(func() {
			routes := slices.DeleteFunc(n.Routes[i][:], func(address string) bool { return address == "" })
			node, err := cluster.Start(cluster.Config{Name: fmt.Sprint("replica-", i), Dir: dir, Listen: n.Listen[i],
				Routes: routes, Secret: "secret", Log: slog.New(slog.DiscardHandler)})
			if err == nil {
				t.Cleanup(node.Close)
				stores[i], err = Open(node.Conn, cluster.Peers)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	if all.Wait(); t.Failed() {
		t.FailNow()
	}
	return stores
}

func opened(t *testing.T) *Store {
	t.Helper()
	node, err := cluster.Start(cluster.Config{Name: "one", Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	t.Cleanup(node.Close)
	s, err := Open(node.Conn, 1)
	must(t, err)
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
