package kv

import (
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
	node, err := cluster.Start(cluster.Config{Name: "one", Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	t.Cleanup(node.Close)
	s, err := Open(node.Conn, 1)
	must(t, err)
	ctx := t.Context()
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

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
