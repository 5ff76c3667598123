package cluster

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
)

func start(t *testing.T, dir string) *Node {
	t.Helper()
	n, err := Start(Config{Name: "one", Dir: dir, Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	t.Cleanup(n.Close)
	return n
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The limit of the server's files counts those that are there: after a restart with a volume half full, what is free is
// less than they take, and the server would accept nothing. The directory may be a link.
func TestLimitCountsWhatIsThere(t *testing.T) {
	const there = 1 << 40 // more than is free
	dir, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	name := filepath.Join(dir, "a")
	must(t, os.WriteFile(name, nil, 0o600))
	must(t, os.Truncate(name, there))
	must(t, os.Symlink(dir, link))
	if limit := start(t, link).server.JetStreamConfig().MaxStore; limit < there/4*3 {
		t.Errorf("%d bytes, though %d are in use", limit, there)
	}
}

// A node that floods this replica with signs of life does not flood the others, and old nodes are forgotten.
func TestSignsOfLifeAreRare(t *testing.T) {
	n := start(t, t.TempDir())
	sub, err := n.Conn.SubscribeSync(wordsSubject)
	must(t, err)
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
		must(t, n.Conn.Flush())
		if got, _, err := sub.Pending(); got != want || err != nil {
			t.Errorf("%d signs of life reach the other replicas, want %d; %v", got, want, err)
		}
	}
	if len(w.sent) != 2 {
		t.Errorf("%d nodes are remembered, want 2", len(w.sent))
	}
}
