package witness_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

func TestCompareNames(t *testing.T) {
	ready := func(uid, name string, source string) witness.SandboxFact {
		return witness.SandboxFact{Pod: inspecttest.Pod(uid, name).Pod, ID: uid, State: "READY", Source: source}
	}
	started, ended, mirror := inspecttest.Pod(inspecttest.Other, "b"), inspecttest.Pod(inspecttest.Other, "b"),
		inspecttest.Pod(inspecttest.Static, "b")
	lacked := witness.Comparison{Listed: 1, Lacked: 1, Proven: []string{"default/b"}}
	started.Started, ended.Phase, mirror.Mirror = true, "Failed", true
	tests := map[string]struct {
		names     map[string]int
		list      []witness.PodFact
		sandboxes []witness.SandboxFact
		running   string
		want      witness.Comparison
	}{
		"shared": {map[string]int{"default/a": 1}, []witness.PodFact{inspecttest.Pod(inspecttest.Living, "a")},
			[]witness.SandboxFact{ready(inspecttest.Living, "a", "api")},
			"", witness.Comparison{Shared: 1, Wanted: 1, Listed: 1}},
		"the same name only": {map[string]int{"default/a": 1}, []witness.PodFact{inspecttest.Pod(inspecttest.Living, "a")},
			[]witness.SandboxFact{ready(inspecttest.Other, "a", "api")}, "", witness.Comparison{Wanted: 1, Listed: 1}},
		"no sandbox": {map[string]int{"default/a": 1}, []witness.PodFact{inspecttest.Pod(inspecttest.Living, "a")}, nil, "",
			witness.Comparison{Wanted: 1, Listed: 1}},
		"missing": {map[string]int{"default/a": 1}, nil, []witness.SandboxFact{ready(inspecttest.Living, "a", "api")}, "",
			witness.Comparison{Wanted: 1, Missing: 1}},
		"static": {map[string]int{"default/b": 1}, nil, []witness.SandboxFact{ready(inspecttest.Static, "b", "file")},
			"", witness.Comparison{}},
		"a mirror": {map[string]int{"default/b": 1}, []witness.PodFact{mirror},
			[]witness.SandboxFact{ready(inspecttest.Static, "b", "")}, "",
			witness.Comparison{}},
		"lacked": {nil, []witness.PodFact{inspecttest.Pod(inspecttest.Other, "b")}, nil, "",
			witness.Comparison{Listed: 1, Lacked: 1}},
		"lacked, started": {nil, []witness.PodFact{started}, nil, "", lacked},
		"lacked, and runs": {nil, []witness.PodFact{inspecttest.Pod(inspecttest.Other, "b")}, nil, inspecttest.Other,
			lacked},
		"has ended":           {nil, []witness.PodFact{ended}, nil, "", witness.Comparison{}},
		"has ended, and runs": {nil, []witness.PodFact{ended}, nil, inspecttest.Other, lacked},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			inventory := witness.Inventory{Runtime: witness.RuntimeInventory{Pods: map[string]witness.SandboxFact{},
				Running: map[string]bool{test.running: true}}}
			list := make(map[string]witness.PodFact)
			for _, p := range test.list {
				list[p.UID] = p
			}
			for _, s := range test.sandboxes {
				inventory.Runtime.Pods[s.UID] = s
			}
			inventory.Kubelet.Names = test.names
			if diff := cmp.Diff(test.want, inventory.CompareNames(list)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
