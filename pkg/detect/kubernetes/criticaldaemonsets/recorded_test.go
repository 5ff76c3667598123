package criticaldaemonsets

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
)

// TestCriticalDaemonSetsRecorded: the objects of a real cluster, and the findings if the pod is gone.
func TestCriticalDaemonSetsRecorded(t *testing.T) {
	n := newDaemonNode()
	n.host.NodeName = "fixture"
	n.clock.Wall = time.Date(2026, 11, 21, 2, 0, 0, 0, time.UTC)
	files := checktest.Recorded(t, "testdata/critical-daemonsets/recorded.txtar")
	n.set, n.revisions, n.pods, n.node = &appsv1.DaemonSet{}, nil, nil, corev1.Node{}
	for name, into := range map[string]any{"daemonset.json": n.set, "revisions.json": &n.revisions,
		"pods.json": &n.pods, "node.json": &n.node} {
		if err := json.Unmarshal(files[name], into); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	n.cached = []appsv1.DaemonSet{*n.set}
	expect := func(want ...string) {
		t.Helper()
		found, err := New(DefaultSettings(), n.lookups()).Run(t.Context(), n.host)
		if diff := cmp.Diff(want, checktest.Reasons(found)); diff != "" || err != nil {
			t.Errorf("error %v (-want +got):\n%s", err, diff)
		}
	}
	expect()
	n.pass(time.Hour)
	n.pods = nil
	expect("daemonset/kube-system/node-helper=DaemonSetPodMissing")
}
