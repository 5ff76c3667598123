package actions

import (
	"slices"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Which objects must go before a lost container, a shim or an address, and which are never planned.
func TestGhostActions(t *testing.T) {
	frozen := leftover(object.Cgroup, "c")
	frozen.Facts = map[string]string{"frozen": "true"}
	process, dead := leftover(object.Process, "1"), leftover(object.Process, "2")
	dead.Facts = map[string]string{"state": "Z"}
	process.Facts = map[string]string{"state": "Z", "threads": "3"}
	if doing, why := processAction().Plan(process, Settings{}); doing == "" {
		t.Errorf("a process with threads left is not ended: %s", why)
	}
	if doing, _ := processAction().Plan(dead, Settings{}); doing != "" {
		t.Errorf("a zombie: %s", doing)
	}
	thing := func(kind object.Kind) object.Assessment { return leftover(kind, "x") }
	for _, test := range []struct {
		kind object.Kind
		rest []object.Assessment
		want string // part of the reason
	}{
		{object.ContainerdContainer, []object.Assessment{thing(object.Mount), process}, ""},
		{object.ContainerdContainer, []object.Assessment{thing(object.Sandbox)}, "sandbox x"},
		{object.ContainerdContainer, []object.Assessment{thing(object.Container)}, "container x"},
		{object.ContainerdContainer, []object.Assessment{frozen, process}, "frozen"},
		{object.Shim, []object.Assessment{thing(object.Mount), dead}, ""},
		{object.Shim, []object.Assessment{process}, "process 1"},
		{object.Shim, []object.Assessment{thing(object.ContainerdContainer)}, "containerd-container x"},
		{object.IPAMLease, []object.Assessment{thing(object.Mount), dead}, ""},
		{object.IPAMLease, []object.Assessment{process}, "process 1"},
		{object.IPAMLease, []object.Assessment{thing(object.CNIAttachment)}, "cni-attachment x"},
		{object.IPAMLease, []object.Assessment{thing(object.Netns)}, "netns x"},
		{object.SandboxDirectory, []object.Assessment{thing(object.Mount), dead}, ""},
		{object.SandboxDirectory, []object.Assessment{process}, "process 1"},
		{object.SandboxDirectory, []object.Assessment{thing(object.Shim)}, "shim x"},
		{object.Rootfs, []object.Assessment{thing(object.Mount), dead}, ""},
		{object.Rootfs, []object.Assessment{process}, "process 1"},
		{object.Rootfs, []object.Assessment{thing(object.Shim)}, "shim x"},
	} {
		action, _ := All().On(test.kind)
		got := action.Needs(thing(test.kind), test.rest, Settings{})
		if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s beside %s: %q, want %q", test.kind, test.rest[0].Kind, got, test.want)
		}
	}
	for kind, facts := range map[object.Kind]map[string]string{
		object.Shim: {"command": "conmon"}, object.IPAMLease: {"malformed": "empty"},
	} {
		o := thing(kind)
		action, _ := All().On(kind)
		if _, refuse := action.Plan(o, Settings{}); refuse != "" {
			t.Errorf("%s: %s", kind, refuse)
		}
		o.Facts = facts
		if _, refuse := action.Plan(o, Settings{}); refuse == "" {
			t.Errorf("%s with %v is planned", kind, facts)
		}
	}
	sandbox, container := thing(object.ContainerdContainer), leftover(object.ContainerdContainer, "y")
	sandbox.Facts, container.Facts = map[string]string{"kind": "sandbox"}, map[string]string{"kind": "container"}
	action, _ := All().On(object.ContainerdContainer)
	objects := []object.Assessment{sandbox, container}
	slices.SortFunc(objects, action.Less)
	if objects[0].ID != container.ID {
		t.Error("the sandbox goes before the container in it")
	}
}
