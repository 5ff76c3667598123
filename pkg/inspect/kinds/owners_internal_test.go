package kinds

import (
	"errors"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// If two sandboxes claim one object, neither owns it.
func TestClaimedByTwo(t *testing.T) {
	owners := make(map[string][]Owner)
	add(owners, "p", Owner{inspecttest.Sandbox, object.Pod{UID: inspecttest.Dead, Name: "a"}})
	add(owners, "p", Owner{inspecttest.Sandbox, object.Pod{UID: inspecttest.Dead}}) // the same
	o := object.Object{Kind: object.Netns, ID: "p"}
	if AttachOwner(&o, owners["p"]); o.Foreign != "" || o.Pod.UID != inspecttest.Dead ||
		o.SandboxID != inspecttest.Sandbox {
		t.Errorf("one: %+v", o)
	}
	add(owners, "p", Owner{inspecttest.NewSandbox, object.Pod{UID: inspecttest.Other}})
	o = object.Object{Kind: object.Netns, ID: "p"}
	if AttachOwner(&o, owners["p"]); !strings.Contains(o.Foreign, "two sandboxes") || o.Pod.UID != "" {
		t.Errorf("two: %+v", o)
	}
}

// A namespace with unknown processes is unknown.
func TestUnreadableNetworkIsUnknown(t *testing.T) {
	scan := hostscan.New(t.Context(), hosttest.Host(t), hostscan.Deadline{})
	scan.Processes = func() (hostscan.ProcessTable, error) { return hostscan.ProcessTable{}, errors.New("away") }
	o := inspecttest.Object(object.Netns, inspecttest.Dead)
	if explainNetwork(scan, []*object.Object{&o}); !strings.Contains(o.Doubt, "away") {
		t.Errorf("doubt %q", o.Doubt)
	}
}

func TestNetnsOfStatus(t *testing.T) {
	for name, test := range map[string]struct{ info, want string }{
		"containerd 1 and CRI-O": {`{"runtimeSpec":{"linux":{"namespaces":[{"type":"pid"},{"type":"network","path":"/run/netns/a"}]}}}`, "/run/netns/a"},
		"containerd 2": {`{"runtimeSpec":{"linux":{"namespaces":[{"type":"network","path":"/run/netns/a"}]}},
			"sandboxMetadata":{"Version":"v1","Metadata":{"ID":"x","NetNSPath":"/run/netns/a"}}}`, "/run/netns/a"},
		"containerd 2, no container": {`{"processStatus":"deleted","runtimeSpec":null,"sandboxMetadata":{"Version":"v1","Metadata":{"NetNSPath":"/run/netns/a"}}}`, "/run/netns/a"},
		"the host's network":         {`{"runtimeSpec":{"linux":{"namespaces":[{"type":"pid"}]}},"sandboxMetadata":{"Metadata":{"NetNSPath":""}}}`, ""},
		"no information":             {"", ""},
		"malformed":                  {`{"runtimeSpec":3}`, ""},
	} {
		answer := &cri.PodSandboxStatusResponse{Info: map[string]string{"info": test.info}}
		if got := netnsOfStatus(answer); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
