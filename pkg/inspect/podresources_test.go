package inspect

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

func TestStillGoneByName(t *testing.T) {
	web3 := object.Pod{UID: inspecttest.UIDOf(3), Namespace: "default", Name: "web-3"}
	tests := map[string]struct {
		pod   object.Pod
		bend  func(n *fullNode)
		want  string // part of the error; empty: still gone
		lists int
	}{
		"a pod":   {web3, func(*fullNode) {}, "", 0},
		"it runs": {web3, func(n *fullNode) { n.running[inspecttest.UIDOf(3)] = true }, "runs again", 0},
		"kubelet has it again": {web3, func(n *fullNode) {
			n.add(inspecttest.UIDOf(3),
				"web-3")
			n.running[inspecttest.UIDOf(3)] = false
		},
			"the apiserver", 1},
		"only kubelet has it again": {web3, func(n *fullNode) {
			n.kubelet[inspecttest.UIDOf(3)] = n.pod(inspecttest.UIDOf(3), "default", "web-3")
		}, "kubelet for pod " + inspecttest.UIDOf(3) + " again: knows", 1},
		"only kubelet has it again, ended": {web3, func(n *fullNode) {
			p := n.pod(inspecttest.UIDOf(3), "default", "web-3")
			p.Status.Phase = corev1.PodFailed
			n.kubelet[inspecttest.UIDOf(3)] = p
		}, "allocated_pods_state names pod " + inspecttest.UIDOf(3) + " again", 0},
		"another one has its name": {web3, func(n *fullNode) { n.add(inspecttest.UIDOf(20), "web-3") }, "", 1},
		"no name":                  {object.Pod{UID: inspecttest.UIDOf(3)}, func(*fullNode) {}, "", 1},
		"no name, and one of kubelet's is not listed": {object.Pod{UID: inspecttest.UIDOf(3)}, func(n *fullNode) {
			n.kubelet[inspecttest.UIDOf(20)] = n.pod(inspecttest.UIDOf(20), "default", "new")
		}, "which pod default/new of kubelet's is", 1},
		"no name, and the apiserver is away": {object.Pod{UID: inspecttest.UIDOf(3)}, func(n *fullNode) {
			n.host.Cluster.Pods = func(context.Context) ([]corev1.Pod, error) { return nil, errors.New("away") }
		}, "away", 0},
		"static": {object.Pod{UID: goneStatic, Namespace: "default", Name: "x-node-a"}, func(*fullNode) {},
			"may be a static one", 0},
		"the runtime is away": {web3, func(n *fullNode) {
			n.host.Runtime.Containers = func(context.Context) ([]*cri.Container, error) { return nil, errors.New("away") }
		}, "ask the runtime", 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n := newFullNode(t)
			n.refuse()
			n.delete(inspecttest.UIDOf(3))
			n.running[inspecttest.UIDOf(3)] = false
			test.bend(n)
			err := n.inspector.StillGone(t.Context(), test.pod)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if n.lists != test.lists {
				t.Errorf("%d lists", n.lists)
			}
		})
	}
}

// Once the full right is granted, the agent uses /pods again: the history goes on.
func TestRightIsGranted(t *testing.T) {
	n := newFullNode(t)
	pods, metric := n.host.Kubelet.Pods, n.host.Kubelet.Metric
	n.refuse()
	n.delete(inspecttest.UIDOf(3))
	n.running[inspecttest.UIDOf(3)] = false
	n.during(10*time.Minute, n.noLeftover)
	n.host.Kubelet.Pods, n.host.Kubelet.Metric = pods, metric
	if verdict, why := n.verdict(n.pass(), inspecttest.UIDOf(3)); verdict != object.Leftover {
		t.Errorf("%s: %s", verdict, why)
	}
}
