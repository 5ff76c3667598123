package actions

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Which objects must be gone before an object of the network may go.
func TestNetworkNeeds(t *testing.T) {
	const sandbox, another = "5555", "6666"
	of := func(kind object.Kind, sandbox, state string) object.Assessment {
		id := sandbox
		if kind != object.Sandbox {
			id = string(kind) + sandbox
		}
		return object.Assessment{Object: object.Object{Kind: kind, ID: id, SandboxID: sandbox,
			Facts: map[string]string{"state": state}}}
	}
	force := Settings{ForceNetwork: true}
	for name, test := range map[string]struct {
		kind object.Kind
		rest object.Assessment
		set  Settings
		want string // part of the reason; empty: it may go
	}{
		"DEL, sandbox ready": {object.CNIAttachment, of(object.Sandbox, sandbox, "READY"), Settings{},
			"still ready"},
		"DEL, sandbox in a state unheard of": {object.CNIAttachment, of(object.Sandbox, sandbox, ""), Settings{},
			"still ready"},
		"DEL, sandbox stopped": {object.CNIAttachment, of(object.Sandbox, sandbox, "NOTREADY"),
			Settings{}, ""},
		"DEL, another sandbox ready": {object.CNIAttachment, of(object.Sandbox, another, "READY"), Settings{},
			""},
		"DEL, even by force": {object.CNIAttachment, of(object.Sandbox, sandbox, "READY"), force,
			"still ready"},
		"netns, attachment left": {object.Netns, of(object.CNIAttachment, sandbox, ""), Settings{},
			"cni-attachment"},
		"netns, sandbox left": {object.Netns, of(object.Sandbox, sandbox, "NOTREADY"), Settings{},
			"sandbox"},
		"netns, another's attachment":      {object.Netns, of(object.CNIAttachment, another, ""), Settings{}, ""},
		"netns, attachment left, by force": {object.Netns, of(object.CNIAttachment, sandbox, ""), force, ""},
		"link, attachment left": {object.Link, of(object.CNIAttachment, sandbox, ""), Settings{},
			"CNI attachment"},
		"link, another's attachment":      {object.Link, of(object.CNIAttachment, another, ""), Settings{}, ""},
		"link, netns left":                {object.Link, of(object.Netns, sandbox, ""), Settings{}, ""},
		"link, attachment left, by force": {object.Link, of(object.CNIAttachment, sandbox, ""), force, ""},
		"lease, attachment left": {object.Lease, of(object.CNIAttachment, sandbox, ""), Settings{},
			"cni-attachment"},
		"lease, netns left":   {object.Lease, of(object.Netns, sandbox, ""), Settings{}, "netns"},
		"lease, link left":    {object.Lease, of(object.Link, sandbox, ""), Settings{}, "link"},
		"lease, process left": {object.Lease, of(object.Process, "", ""), Settings{}, "process"},
		"lease, container left": {object.Lease, of(object.Container, sandbox, ""), Settings{},
			"container"},
		"lease, sandbox left, even by force": {object.Lease, of(object.Sandbox, sandbox, "NOTREADY"), force,
			"sandbox"},
		"lease, cgroup left": {object.Lease, of(object.Cgroup, "", ""), Settings{}, ""},
	} {
		action, ok := All().On(test.kind)
		if !ok {
			t.Fatalf("no action on %s", test.kind)
		}
		why := action.Needs(of(test.kind, sandbox, ""), []object.Assessment{test.rest}, test.set)
		if (why == "") != (test.want == "") || !strings.Contains(why, test.want) {
			t.Errorf("%s: %q, want %q", name, why, test.want)
		}
	}
}

// The order is the runtime's own: its objects below CRI, the network with its plugins, the namespace, and last the
// lease.
func TestNetworkOrder(t *testing.T) {
	var order []object.Kind
	for _, action := range All() {
		switch action.Kind {
		case object.Sandbox, object.Process, object.CNIAttachment, object.Netns, object.Link, object.Lease:
			order = append(order, action.Kind)
		}
	}
	want := []object.Kind{object.Sandbox, object.Process, object.CNIAttachment, object.Netns, object.Link,
		object.Lease}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Error(diff)
	}
}
