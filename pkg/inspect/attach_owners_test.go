package inspect

import (
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestNetnsOfStatus(t *testing.T) {
	for name, test := range map[string]struct{ info, want string }{
		"containerd 1 and CRI-O": {`{"runtimeSpec":{"linux":{"namespaces":[{"type":"pid"},{"type":"network","path":"/run/netns/a"}]}}}`, "/run/netns/a"},
		"containerd 2": {`{"runtimeSpec":{"linux":{"namespaces":[{"type":"network","path":"/run/netns/a"}]}},
			"sandboxMetadata":{"Version":"v1","Metadata":{"ID":"x","NetNSPath":"/run/netns/a"}}}`, "/run/netns/a"},
		"containerd 2, no container": {`{"processStatus":"deleted","runtimeSpec":null,"sandboxMetadata":{"Version":"v1","Metadata":{"NetNSPath":"/run/netns/a"}}}`, "/run/netns/a"},
		"the host's network":         {`{"runtimeSpec":{"linux":{"namespaces":[{"type":"pid"}]}},"sandboxMetadata":{"Metadata":{"NetNSPath":""}}}`, ""},
		"nothing told":               {"", ""},
		"malformed":                  {`{"runtimeSpec":3}`, ""},
	} {
		answer := &cri.PodSandboxStatusResponse{Info: map[string]string{"info": test.info}}
		if got := netnsOfStatus(answer); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
