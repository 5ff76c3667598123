package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
)

// The namespaces whose pods got a node before others found no room, each pod once, are those that took the last capacity.
func TestLastCapacity(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	placed := func(uid, namespace, node string, cpu int64, at time.Time) follow.Act {
		a := act(uid, verdict.Delivered, at)
		a.Timeline.Namespace, a.Timeline.Node, a.Timeline.CPU, a.Timeline.Bytes = namespace, node, cpu, 1<<30
		return a
	}
	full := act("full", verdict.Missed, now)
	full.Timeline.Node = ""
	full.Final = reason.Result{Reason: "CapacityExhausted", Class: reason.System}
	batch := follow.Batch{Judged: []follow.Act{
		placed("a", "greedy", "node-a", 4000, now), placed("b", "greedy", "node-b", 4000, now.Add(-time.Minute)), // of the day before
		placed("c", "modest", "node-a", 500, now), placed("d", "modest", "", 9000, now), // it has no node
		placed("e", "early", "node-a", 64_000, now.Add(-3*time.Hour)), full}}
	for range 2 { // it may come again
		if err := s.Save(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	for namespace, want := range map[string]string{"": "1 [{greedy 2 8000 2147483648} {modest 1 500 1073741824}]",
		"modest": "1 [{modest 1 500 1073741824}]", "other": "1 []"} {
		misses, took, err := s.LastCapacity(t.Context(), now.Add(time.Second), 24*time.Hour, namespace)
		if got := fmt.Sprint(misses, took); err != nil || got != want {
			t.Errorf("%q: %s, %v, want %s", namespace, got, err, want)
		}
	}
	if misses, took, err := s.LastCapacity(t.Context(), now.Add(6*time.Hour), time.Hour, ""); err != nil || misses != 0 || took != nil {
		t.Errorf("%d %v, %v", misses, took, err)
	}
}
