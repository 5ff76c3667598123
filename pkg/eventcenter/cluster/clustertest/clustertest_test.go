package clustertest_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/cluster"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/cluster/clustertest"
)

// refused signals that a server could not reach another.
type refused chan struct{}

func (r refused) Enabled(context.Context, slog.Level) bool { return true }
func (r refused) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r refused) WithGroup(string) slog.Handler            { return r }
func (r refused) Handle(_ context.Context, record slog.Record) error {
	if strings.HasPrefix(record.Message, "Error trying to connect to route") {
		select {
		case r <- struct{}{}:
		default:
		}
	}
	return nil
}

// A replica tells its peers of each other. They connect only through the network, which otherwise could not cut them
// off.
func TestThereIsNoOtherWay(t *testing.T) {
	n := clustertest.New(t)
	failed := make(refused, 1)
	dir := t.TempDir()
	start := func(i int, routes ...string) *cluster.Node {
		node, err := cluster.Start(cluster.Config{Name: fmt.Sprint("replica-", i), Dir: filepath.Join(dir, fmt.Sprint(i)),
			Listen: n.Listen[i], Routes: routes, Secret: "secret", Log: slog.New(failed)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(node.Close)
		return node
	}
	start(1, n.Routes[1][0])
	one, other := start(0, n.Routes[0][1]), start(2, n.Routes[2][1])
	heard, err := other.Conn.SubscribeSync("word")
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if err := one.Conn.Publish("word", nil); err != nil {
			t.Fatal(err)
		}
		if _, err := heard.NextMsg(50 * time.Millisecond); err == nil {
			t.Fatal("two replicas are connected, of which neither was told how to reach the other")
		}
		select {
		case <-failed:
			return
		default:
		}
	}
	t.Fatal("neither has tried to reach the other")
}
