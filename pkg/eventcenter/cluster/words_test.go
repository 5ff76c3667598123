package cluster

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
)

// A node that floods this replica with signs of life does not flood the others, and old nodes are forgotten.
func TestSignsOfLifeAreRare(t *testing.T) {
	n, err := Start(Config{Name: "one", Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	sub, err := n.Conn.SubscribeSync(wordsSubject)
	if err != nil {
		t.Fatal(err)
	}
	w := &Words{Node: n, Model: model.New(), Log: slog.New(slog.DiscardHandler)}
	now := time.Now()
	for interval, want := range []int{2, 4} {
		for range 100 {
			for node := range 2 {
				w.RecordAlive(model.Key{Cluster: "c", Node: fmt.Sprint(interval, node)}, event.Agent{}, now, now)
			}
			now = now.Add(20 * time.Millisecond)
		}
		now = now.Add(time.Second)
		if err := n.Conn.Flush(); err != nil {
			t.Fatal(err)
		}
		if got, _, err := sub.Pending(); got != want || err != nil {
			t.Errorf("%d signs of life reach the other replicas, want %d; %v", got, want, err)
		}
	}
	if len(w.sent) != 2 {
		t.Errorf("%d nodes are remembered, want 2", len(w.sent))
	}
}
