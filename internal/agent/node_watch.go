package agent

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
)

// watchNode shows the Node to all that write there, or write what it owns.
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

// standsForFault reports whether something on the Node stands for a fault: a fault makes it, or a taint is left of one.
func (a *Agent) standsForFault() bool {
	if node := a.clients.Client.WatchedNode(); node != nil && slices.ContainsFunc(node.Spec.Taints,
		func(t corev1.Taint) bool { return t.Key == a.cfg.Report.Taint.Key }) {
		return true
	}
	return slices.ContainsFunc(a.state().Raised(), func(b finding.Believed) bool { return b.Severity == finding.Fatal })
}
