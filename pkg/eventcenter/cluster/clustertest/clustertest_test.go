package clustertest_test

import (
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/cluster"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/cluster/clustertest"
)

// A replica tells its peers of each other. They connect only through the network, which otherwise could not cut them
// off.
func TestThereIsNoOtherWay(t *testing.T) {
	n := clustertest.New(t)
	log, failed := clustertest.Watched("Error trying to connect to route")
	start := func(i int, route string) *cluster.Node {
		node, err := n.Start(i, t.TempDir(), log, route)
		must(t, err)
		t.Cleanup(node.Close)
		return node
	}
	start(1, n.Routes[1][0])
	one, other := start(0, n.Routes[0][1]), start(2, n.Routes[2][1])
	heard, err := other.Conn.SubscribeSync("word")
	must(t, err)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		must(t, one.Conn.Publish("word", nil))
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

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
