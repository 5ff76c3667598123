package kv

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/cluster"
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

// lagging is a bucket whose replica has no entries at first, and gets them later or never.
type lagging struct {
	jetstream.KeyValue
	never bool
}

type laggingWatcher struct {
	jetstream.KeyWatcher
	updates chan jetstream.KeyValueEntry
}

func (w laggingWatcher) Updates() <-chan jetstream.KeyValueEntry { return w.updates }

// WatchAll first sends the end of the existing entries.
func (l lagging) WatchAll(ctx context.Context, o ...jetstream.WatchOpt) (jetstream.KeyWatcher, error) {
	w, err := l.KeyValue.WatchAll(ctx, o...)
	if err != nil {
		return nil, err
	}
	later := laggingWatcher{w, make(chan jetstream.KeyValueEntry, 10)} // more than there are
	later.updates <- nil
	go func() {
		for e := range w.Updates() {
			if e != nil && !l.never {
				later.updates <- e
			}
		}
	}()
	return later, nil
}

// A list has everything that was written before, even if the answering replica lags; if it does not catch
// up, that is an error, not an empty list.
func TestListOfLaggingReplica(t *testing.T) {
	s := opened(t)
	for _, key := range []string{"b", "a", "gone"} {
		revision, err := s.Put(t.Context(), "subscriptions", key, []byte(key), 0)
		must(t, err)
		if key == "gone" {
			must(t, s.Delete(t.Context(), "subscriptions", key, revision))
		}
	}
	b := s.buckets["subscriptions"]
	s.buckets["subscriptions"] = bucket{lagging{b.KeyValue, false}, b.markers}
	for range 2 {
		records, err := s.List(t.Context(), "subscriptions", "")
		if err != nil || len(records) != 2 || records[0].Key != "a" || string(records[1].Value) != "b" {
			t.Errorf("%v, %v", records, err)
		}
	}
	s.listLimit = 200 * time.Millisecond
	s.buckets["subscriptions"] = bucket{lagging{b.KeyValue, true}, b.markers}
	if records, err := s.List(t.Context(), "subscriptions", ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, %v", records, err)
	}
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
