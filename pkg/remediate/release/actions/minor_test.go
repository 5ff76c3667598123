package actions

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Which objects must go before logs and units, and which are never planned.
func TestMinorActions(t *testing.T) {
	thing := func(kind object.Kind) object.Assessment { return leftover(kind, "x") }
	for _, test := range []struct {
		kind, beside object.Kind
		want         string
	}{
		{object.PodLogs, object.PodLogs, ""}, {object.PodLogs, object.PodDirectory, "pod-directory x"},
		{object.PodLogs, object.Mount, "mount x"}, {object.SystemdUnit, object.PodLogs, ""},
		{object.SystemdUnit, object.Process, "process x"}, {object.SystemdUnit, object.Cgroup, "cgroup x"},
	} {
		action, _ := All().On(test.kind)
		got := action.Needs(thing(test.kind), []object.Assessment{thing(test.beside)}, Settings{})
		if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s beside %s: %q, want %q", test.kind, test.beside, got, test.want)
		}
	}
	action, _ := All().On(object.SystemdUnit)
	refused := map[string]bool{}
	for _, state := range []string{"failed", "active", "inactive", ""} {
		o := thing(object.SystemdUnit)
		o.Facts = map[string]string{"active": state}
		_, why := action.Plan(o, Settings{})
		refused[state] = why != ""
	}
	if diff := cmp.Diff(map[string]bool{"failed": false, "active": true, "inactive": true, "": true}, refused); diff != "" {
		t.Error(diff)
	}
}
