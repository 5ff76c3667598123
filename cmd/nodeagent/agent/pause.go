package agent

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/kube"
	"github.com/nodeagent/nodeagent/pkg/remediate/fleet"
	"github.com/nodeagent/nodeagent/pkg/report/taint"
)

// pauseAnnotation on the Node object stops all releases on that node; its value is the reason.
const pauseAnnotation = "nodeagent.github.io/pause"

// paused returns why an operator has paused releases, or "". The annotation counts whatever its value.
func paused(ctx context.Context, getNode func(context.Context) (*corev1.Node, error)) (string, error) {
	node, err := getNode(ctx)
	if err != nil {
		return "", fmt.Errorf("get the Node: %w", err)
	}
	why, ok := node.Annotations[pauseAnnotation]
	if !ok {
		return "", nil
	}
	return "paused by the annotation " + pauseAnnotation + " of the Node: " + why, nil
}

// repairsPaused returns why repairs are paused, or "": an operator has paused them, or other software works on the
// Node.
func repairsPaused(client *kube.Client, s fleet.Settings) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		var node *corev1.Node
		why, err := paused(ctx, func(ctx context.Context) (_ *corev1.Node, err error) {
			node, err = client.GetNode(ctx)
			return node, err
		})
		if err != nil || why != "" {
			return why, err
		}
		if why := taint.Owner(node); why != "" {
			return why, nil
		}
		return elsewhere(client, s)(ctx)
	}
}

// elsewhere returns which other software, by signs outside the Node object, works on the Node, or "".
func elsewhere(client *kube.Client, s fleet.Settings) func(context.Context) (string, error) {
	return func(ctx context.Context) (why string, err error) {
		if s.Kured != "" {
			why, err = client.Kured(ctx, s.Kured)
		}
		if s.Medik8s != "" && why == "" && err == nil {
			why, err = client.Medik8s(ctx, s.Medik8s)
		}
		return why, err
	}
}
