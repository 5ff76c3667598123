package actions

import (
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Mounts that must never be unmounted.
func TestMountPlanRefuses(t *testing.T) {
	action := mountAction()
	for name, test := range map[string]struct {
		facts map[string]string
		want  string
	}{
		"ours":          {map[string]string{"table": "host"}, ""},
		"kubelet's own": {map[string]string{"table": "kubelet"}, "kubelet's own mount namespace"},
		"its unmount would reach others": {map[string]string{"table": "host", "refused": "mount 7 would go"},
			"mount 7 would go"},
	} {
		does, refusal := action.Plan(object.Assessment{Object: object.Object{Kind: object.Mount, Facts: test.facts}},
			Settings{})
		if (refusal == "") != (test.want == "") || !strings.Contains(refusal, test.want) ||
			(does == "") != (test.want != "") {
			t.Errorf("%s: %q, refused %q", name, does, refusal)
		}
	}
}

// The volumes of a container stay while it may run.
func TestMountNeedsEndedContainers(t *testing.T) {
	for state, want := range map[string]string{
		"EXITED": "", "RUNNING": "is RUNNING", "CREATED": "is CREATED", "UNKNOWN": "is UNKNOWN",
		"": "in an unknown state",
	} {
		rest := []object.Assessment{
			{Object: object.Object{Kind: object.Sandbox, ID: "s",
				Facts: map[string]string{"state": "SANDBOX_READY"}}},
			{Object: object.Object{Kind: object.Container, ID: "c", Facts: map[string]string{"state": state}}},
		}
		if why := mountAction().Needs(object.Assessment{}, rest, Settings{}); (why == "") != (want == "") ||
			!strings.Contains(why, want) {
			t.Errorf("%q: %q, want %q", state, why, want)
		}
	}
	if why := mountAction().Needs(object.Assessment{}, nil, Settings{}); why != "" {
		t.Errorf("no container: %q", why)
	}
}
