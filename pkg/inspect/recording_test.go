package inspect

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/verdict"
)

// The record of a pass reproduces its report, including holders and failures.
func TestPassIsRecorded(t *testing.T) {
	for name, change := range map[string]func(*fullNode){
		"nothing left":       func(*fullNode) {},
		"a pod is gone":      func(n *fullNode) { n.delete(inspecttest.UIDOf(3)) },
		"kubelet is silent":  func(n *fullNode) { n.host.Kubelet.Pods = nil },
		"a pod is forgotten": func(n *fullNode) { forget(n.kubelet, inspecttest.UIDOf(4)) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newFullNode(t)
			change(n)
			var e verdict.Evidence
			n.inspector.Recording(func(recorded verdict.Evidence) { e = recorded })
			report := n.pass()
			got, _ := e.Evaluate()
			if diff := cmp.Diff(report, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// RecordNode returns the evidence of a pass over a node with scripted witnesses.
func RecordNode(t *testing.T, story string) verdict.Evidence {
	t.Helper()
	n := newFullNode(t)
	var e verdict.Evidence
	n.inspector.Recording(func(recorded verdict.Evidence) { e = recorded })
	switch story {
	case "leftover": // of a pod whose containers have ended
		n.running[inspecttest.UIDOf(3)] = false
		n.delete(inspecttest.UIDOf(3))
		n.during(n.settings.Grace+n.settings.ListSpacing, func(object.Report) {})
	case "running": // of a pod with containers that still run
		n.delete(inspecttest.UIDOf(3))
		n.during(n.settings.Grace+n.settings.RunningSpacing, func(object.Report) {})
	case "kubelet-silent":
		n.delete(inspecttest.UIDOf(3))
		n.host.Kubelet.Pods = nil
		n.host.Runtime.SandboxStatus = nil
		n.host.Cluster.Pods = func(context.Context) ([]corev1.Pod, error) { return nil, forbidden }
		n.pass()
	}
	return e
}
