package agent

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
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
	kubelet := kubeletLife{process: a.clients.Host.Kubelet.Process}
	return a.clients.Client.WatchNode(ctx, func(node *corev1.Node) {
		kubelet.saw()
		for _, sink := range sinks {
			sink.Saw(node)
		}
	}, func() bool { return a.standsForFault() || kubelet.isNew() })
}

// kubeletLife tells whether kubelet has started since the Node was last seen. Only then does it register, and the Node may
// be another one of the same name. It is for one goroutine.
type kubeletLife struct {
	process func() (host.Process, error) // nil: none is known
	last    host.Process
}

func (k *kubeletLife) now() host.Process {
	if k.process == nil {
		return host.Process{}
	}
	p, err := k.process()
	if err != nil {
		return k.last // it does not run: the Node does not change
	}
	return p
}

func (k *kubeletLife) saw() { k.last = k.now() }

func (k *kubeletLife) isNew() bool {
	p := k.now()
	return p.PID != k.last.PID || p.StartTime != k.last.StartTime
}

// standsForFault reports whether the Node shows a fault: a fatal finding is raised, or the taint of one is still there.
func (a *Agent) standsForFault() bool {
	if node := a.clients.Client.WatchedNode(); node != nil && slices.ContainsFunc(node.Spec.Taints,
		func(t corev1.Taint) bool { return t.Key == a.cfg.Report.Taint.Key }) {
		return true
	}
	return slices.ContainsFunc(a.state().Raised(), func(b finding.Believed) bool { return b.Severity == finding.Fatal })
}
