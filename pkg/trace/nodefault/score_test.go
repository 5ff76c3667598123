package nodefault

import (
	"fmt"
	"strings"
	"testing"
)

// A node loses points if it is worse than its pool, and each loss is explained. Few acts cost none.
func TestScores(t *testing.T) {
	nodes := []Score{{Node: "good", Pool: "gpu", Delivered: 200}, {Node: "late", Pool: "gpu", Delivered: 80, Missed: 20}, {Node: "few", Pool: "gpu", Missed: 19},
		{Node: "cordoned", Pool: "cpu", Delivered: 50, Missed: 50}, {Node: "like it", Pool: "cpu", Delivered: 50, Missed: 50},
		{Node: "dead", Pool: "cpu", Missed: 100, Faulty: true},
		{Node: "busy", Load: 0.934}, {Node: "full", Load: 1.2}, {Node: "idle", Load: 0.8}}
	faults := []Fault{{Node: "late", Kind: SandboxFails}, {Node: "dead", Kind: MountFails}, {Node: "dead", Kind: SandboxFails}}
	var got []string
	for _, s := range Scores(nodes, faults) {
		got = append(got, fmt.Sprint(s.Node, " ", s.Score, " ", strings.Join(s.Why, ", ")))
	}
	want := `dead 0 50 points: 0.0 % of 100 were in time, 50.0 % on the other nodes of its pool, 20 points: the fault MountFailsOnNode, 20 points: the fault SandboxFailsOnNode, 50 points: it is not ready, or has the taint of a fault
late 69 11 points: 80.0 % of 100 were in time, 91.3 % on the other nodes of its pool, 20 points: the fault SandboxFailsOnNode
full 80 20 points: its load is 120 %
busy 87 13 points: its load is 93 %
cordoned 100 
few 100 
good 100 
idle 100 
like it 100 `
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("%s", text)
	}
}
