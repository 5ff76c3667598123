package witness

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// The mutual proofs of the two lists.
func TestCompare(t *testing.T) {
	fact := func(bend func(*PodFact)) PodFact {
		f := PodFact{Pod: object.Pod{UID: "x", Namespace: "default", Name: "x"}, Phase: "Running"}
		bend(&f)
		return f
	}
	plain := fact(func(*PodFact) {})
	for name, test := range map[string]struct {
		list, kubelet *PodFact
		running       bool
		want          Comparison
	}{
		"both":                 {&plain, &plain, true, Comparison{Shared: 1, Wanted: 1, Listed: 1}},
		"only kubelet":         {nil, &plain, true, Comparison{Wanted: 1, Missing: 1}},
		"only kubelet, static": {nil, new(fact(func(f *PodFact) { f.Static = true })), true, Comparison{}},
		"static and its mirror": {new(fact(func(f *PodFact) { f.Mirror = true })), new(fact(func(f *PodFact) {
			f.Static = true
		})), true, Comparison{}},
		"kubelet forgot its source": {new(fact(func(f *PodFact) {
			f.Mirror = true
		})), &plain, true, Comparison{Wanted: 1}},
		"only the mirror": {new(fact(func(f *PodFact) { f.Mirror = true })), nil, true, Comparison{}},
		"just bound": {new(fact(func(f *PodFact) {
			f.Phase = "Pending"
		})), nil, false, Comparison{Listed: 1, Lacked: 1}},
		"runs": {&plain, nil, true,
			Comparison{Listed: 1, Lacked: 1, Proven: []string{"default/x"}}},
		"kubelet has said so": {new(fact(func(f *PodFact) {
			f.Started = true
		})), nil, false, Comparison{Listed: 1, Lacked: 1, Proven: []string{"default/x"}}},
		"has ended": {new(fact(func(f *PodFact) {
			f.Phase, f.Started = "Succeeded", true
		})), nil, false, Comparison{}},
		"has failed": {new(fact(func(f *PodFact) { f.Phase = "Failed" })), nil, false, Comparison{}},
		"has failed, and runs": {new(fact(func(f *PodFact) {
			f.Phase = "Failed"
		})), nil, true, Comparison{Listed: 1, Lacked: 1, Proven: []string{"default/x"}}},
		"calls itself static": {new(fact(func(f *PodFact) {
			f.Static = true
		})), nil, true, Comparison{Listed: 1, Lacked: 1, Proven: []string{"default/x"}}},
	} {
		book := func(f *PodFact) map[string]PodFact {
			if f == nil {
				return nil
			}
			return map[string]PodFact{"x": *f}
		}
		if diff := cmp.Diff(test.want, Compare(book(test.list), book(test.kubelet),
			map[string]bool{"x": test.running})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
