package verdict

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// A proof takes three passes and ten minutes; these events interrupt it.
func TestHistoryOverPasses(t *testing.T) {
	o := inspecttest.Object(object.Mount, dead)
	pass := func(history object.History, now time.Duration, bend func(*witness.Inventory)) (object.Verdict,
		object.History) {
		inventory := inspecttest.Healthy()
		inventory.Cluster.At = inspecttest.At(now + time.Second)
		if bend != nil {
			bend(&inventory)
		}
		report, next := Evaluate([]object.Object{o}, inventory, history, inspecttest.Settings(), inspecttest.At(now))
		return report.Objects[0].Verdict, next
	}
	deafKubelet := func(t *witness.Inventory) { t.Kubelet.Err, t.Kubelet.Pods = errors.New("away"), nil }
	steps := []struct {
		now    time.Duration
		bend   func(*witness.Inventory)
		want   object.Verdict
		passes int
	}{
		{time.Hour, nil, object.Candidate, 1},
		{time.Hour, nil, object.Candidate, 1}, // the same moment is no second pass
		{time.Hour + 4*time.Minute, nil, object.Candidate, 2},
		{time.Hour + 8*time.Minute, deafKubelet, object.Unknown, 2}, // kept, not counted
		{time.Hour + 9*time.Minute, nil, object.Candidate, 3},
		{time.Hour + 10*time.Minute, nil, object.Leftover, 4},
		{time.Hour + 11*time.Minute, func(t *witness.Inventory) {
			t.Kubelet.Pods[dead] = inspecttest.Pod(dead, "back")
		}, object.Live, 0},
		{time.Hour + 12*time.Minute, nil, object.Candidate, 1},
	}
	history := object.History{}
	for i, step := range steps {
		var got object.Verdict
		got, history = pass(history, step.now, step.bend)
		if passes := history[object.Key(&o)].Passes; got != step.want || passes != step.passes {
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
	if _, next := Evaluate(nil, inspecttest.Healthy(), history, inspecttest.Settings(),
		inspecttest.At(2*time.Hour)); len(next) != 0 {
		t.Errorf("what is gone is remembered: %v", next)
	}
}
