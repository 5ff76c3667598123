package agent

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// pauseAnnotation on the Node object stops all releases on it; its value says why.
const pauseAnnotation = "nodeagent.github.io/pause"

// paused returns why an operator wants nothing to be released, or "". The annotation counts whatever its value is.
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
