package release

import (
	"slices"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// Which objects must go before a lost container, a shim or an address, and which are never planned.
func TestGhostActions(t *testing.T) {
	frozen := leftover(inspect.Cgroup, uid1, "c")
	frozen.Facts = map[string]string{"frozen": "true"}
	process, dead := leftover(inspect.Process, uid1, "1"), leftover(inspect.Process, uid1, "2")
	dead.Facts = map[string]string{"state": "Z"}
	thing := func(kind inspect.Kind) inspect.Assessment { return leftover(kind, uid1, "x") }
	for _, test := range []struct {
		kind inspect.Kind
		rest []inspect.Assessment
		want string // part of the reason
	}{
		{inspect.ContainerdContainer, []inspect.Assessment{thing(inspect.Mount), process}, ""},
		{inspect.ContainerdContainer, []inspect.Assessment{thing(inspect.Sandbox)}, "sandbox x"},
		{inspect.ContainerdContainer, []inspect.Assessment{thing(inspect.Container)}, "container x"},
		{inspect.ContainerdContainer, []inspect.Assessment{frozen, process}, "frozen"},
		{inspect.Shim, []inspect.Assessment{thing(inspect.Mount), dead}, ""},
		{inspect.Shim, []inspect.Assessment{process}, "process 1"},
		{inspect.Shim, []inspect.Assessment{thing(inspect.ContainerdContainer)}, "containerd-container x"},
		{inspect.IPAMLease, []inspect.Assessment{thing(inspect.Mount), dead}, ""},
		{inspect.IPAMLease, []inspect.Assessment{process}, "process 1"},
		{inspect.IPAMLease, []inspect.Assessment{thing(inspect.CNIAttachment)}, "cni-attachment x"},
		{inspect.IPAMLease, []inspect.Assessment{thing(inspect.Netns)}, "netns x"},
		{inspect.SandboxDirectory, []inspect.Assessment{thing(inspect.Mount), dead}, ""},
		{inspect.SandboxDirectory, []inspect.Assessment{process}, "process 1"},
		{inspect.SandboxDirectory, []inspect.Assessment{thing(inspect.Shim)}, "shim x"},
		{inspect.Rootfs, []inspect.Assessment{thing(inspect.Mount), dead}, ""},
		{inspect.Rootfs, []inspect.Assessment{process}, "process 1"},
		{inspect.Rootfs, []inspect.Assessment{thing(inspect.Shim)}, "shim x"},
	} {
		action, _ := actionFor(test.kind)
		got := action.Needs(thing(test.kind), test.rest, Defaults())
		if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s beside %s: %q, want %q", test.kind, test.rest[0].Kind, got, test.want)
		}
	}
	for kind, facts := range map[inspect.Kind]map[string]string{
		inspect.Shim: {"command": "conmon"}, inspect.IPAMLease: {"malformed": "empty"},
	} {
		o := thing(kind)
		action, _ := actionFor(kind)
		if _, refuse := action.Plan(o, Defaults()); refuse != "" {
			t.Errorf("%s: %s", kind, refuse)
		}
		o.Facts = facts
		if _, refuse := action.Plan(o, Defaults()); refuse == "" {
			t.Errorf("%s with %v is planned", kind, facts)
		}
	}
	sandbox, container := thing(inspect.ContainerdContainer), leftover(inspect.ContainerdContainer, uid1, "y")
	sandbox.Facts, container.Facts = map[string]string{"kind": "sandbox"}, map[string]string{"kind": "container"}
	action, _ := actionFor(inspect.ContainerdContainer)
	objects := []inspect.Assessment{sandbox, container}
	slices.SortFunc(objects, action.Less)
	if objects[0].ID != container.ID {
		t.Error("the sandbox goes before the container in it")
	}
}
