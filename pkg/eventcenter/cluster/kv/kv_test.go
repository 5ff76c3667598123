package kv_test

import (
	"log/slog"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/cluster"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/cluster/kv"
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
		s, err := kv.Open(node.Conn, 1)
		must(t, err)
		return s
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
