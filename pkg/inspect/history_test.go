package inspect

import (
	"encoding/json"
	"errors"
	"testing"
	"time"
)

// A proof takes three passes and ten minutes; these events interrupt it.
func TestHistoryOverPasses(t *testing.T) {
	o := object(Mount, dead)
	pass := func(history History, now time.Duration, bend func(*Inventory)) (Verdict, History) {
		inventory := healthy()
		inventory.Cluster.At = at(now + time.Second)
		if bend != nil {
			bend(&inventory)
		}
		report, next := Evaluate([]Object{o}, inventory, history, settings(), at(now))
		return report.Objects[0].Verdict, next
	}
	deafKubelet := func(t *Inventory) { t.Kubelet.Err, t.Kubelet.Pods = errors.New("away"), nil }
	steps := []struct {
		now    time.Duration
		bend   func(*Inventory)
		want   Verdict
		passes int
	}{
		{time.Hour, nil, Candidate, 1},
		{time.Hour, nil, Candidate, 1}, // the same moment is no second pass
		{time.Hour + 4*time.Minute, nil, Candidate, 2},
		{time.Hour + 8*time.Minute, deafKubelet, Unknown, 2}, // kept, not counted
		{time.Hour + 9*time.Minute, nil, Candidate, 3},
		{time.Hour + 10*time.Minute, nil, Leftover, 4},
		{time.Hour + 11*time.Minute, func(t *Inventory) { t.Kubelet.Pods[dead] = pod(dead, "back") }, Live, 0},
		{time.Hour + 12*time.Minute, nil, Candidate, 1},
	}
	history := History{}
	for i, step := range steps {
		var got Verdict
		got, history = pass(history, step.now, step.bend)
		if passes := history[key(&o)].Passes; got != step.want || passes != step.passes {
			t.Errorf("step %d: got %s after %d passes, want %s after %d", i, got, passes, step.want, step.passes)
		}
		data, err := json.Marshal(history)
		if err != nil {
			t.Fatal(err)
		}
		history = nil // the agent restarts between any two passes
		if err := json.Unmarshal(data, &history); err != nil {
			t.Fatal(err)
		}
	}
	if _, next := Evaluate(nil, healthy(), history, settings(), at(2*time.Hour)); len(next) != 0 {
		t.Errorf("what is gone is remembered: %v", next)
	}
}
