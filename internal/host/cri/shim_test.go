package cri

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseShim(t *testing.T) {
	for line, want := range map[string]Shim{
		"/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id a -address /run/c.sock": {ID: "a", Runc: true,
			Address: "/run/c.sock"},
		"containerd-shim-kata-v2 -namespace k8s.io -address /run/c.sock -id a": {ID: "a", Address: "/run/c.sock"},
		"containerd-shim-runc-v2 -namespace moby -id a -address /run/c.sock":   {},
		"containerd-shim-runc-v2 -namespace k8s.io -id":                        {},
		"conmon -b /run/crio/a -c a --exit-dir /var/run/crio/exits":            {ID: "a"},
		"conmon -c a -e --exit-dir /var/run/crio/exits":                        {},
		"conmon -c a --exit-dir /run/libpod/exits":                             {},
		"sh -namespace k8s.io -id a":                                           {},
		"":                                                                     {},
	} {
		got := ParseShim(strings.Fields(line))
		if got.ID == "" {
			got = Shim{}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", line, diff)
		}
	}
	if got := ParseShim([]string{"containerd-shim-runc-v2", "-namespace", "k8s.io", "-id", "a\nb"}); got.ID != "" {
		t.Errorf("%+v", got)
	}
}
