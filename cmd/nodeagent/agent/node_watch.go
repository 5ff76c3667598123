package agent

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
)

// watchNode passes the Node to all reporters that write to it or write objects that it owns.
func (a *Agent) watchNode(ctx context.Context) error {
	var sinks []report.NodeReporter
	for _, r := range a.reporters {
		if sink, ok := r.(report.NodeReporter); ok {
			sinks = append(sinks, sink)
		}
	}
	if len(sinks) == 0 {
		return nil
	}
	return a.clients.Client.WatchNode(ctx, func(node *corev1.Node) {
		for _, sink := range sinks {
			sink.Saw(node)
		}
	}, a.standsForFault)
}

// standsForFault reports whether the Node shows a fault: a fatal finding is raised, or the taint of one is still there.
func (a *Agent) standsForFault() bool {
	if node := a.clients.Client.WatchedNode(); node != nil && slices.ContainsFunc(node.Spec.Taints,
		func(t corev1.Taint) bool { return t.Key == a.cfg.Report.Taint.Key }) {
		return true
	}
	return slices.ContainsFunc(a.state().Raised(), func(b finding.Believed) bool { return b.Severity == finding.Fatal })
}
