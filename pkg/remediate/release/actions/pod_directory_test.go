package actions

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// The directory of a pod is removed last, and only if it is the inspected one.
func TestPodDirectoryNeeds(t *testing.T) {
	action := podDirectoryAction()
	thing := func(kind object.Kind, facts map[string]string) object.Assessment {
		return object.Assessment{Object: object.Object{Kind: kind, ID: "0123456789",
			Identity: object.Identity{Mount: object.MountID{Point: "/p"}}, Facts: facts}}
	}
	var got []string
	for _, rest := range []object.Assessment{
		thing(object.Mount, nil), thing(object.Process, nil), thing(object.Container, nil),
		thing(object.Process, map[string]string{"state": "Z"}), thing(object.PodDirectory, nil),
		thing(object.Cgroup, nil),
	} {
		got = append(got, action.Needs(thing(object.PodDirectory, nil), []object.Assessment{rest}, Settings{}))
	}
	want := []string{"/p is still mounted", "process 0123456789 still exists", "container 0123456789 still exists",
		"", "", ""}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
