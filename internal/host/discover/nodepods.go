package discover

import (
	"context"
	"errors"
	"io/fs"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
)

// NodePods returns the pods of this node for checks that only need to know which pods run here. It asks kubelet or, if
// kubelet denies access (an agent with kubelet's own credentials may not read its /pods), takes the apiserver's list,
// which may be some minutes old. An inspection must not use this: there the two are separate witnesses.
func NodePods(ctx context.Context, h *host.Host) ([]corev1.Pod, error) {
	ask := h.Kubelet.RecentPods
	if ask == nil {
		ask = h.Kubelet.Pods
	}
	pods, refused := host.Ask(ctx, "pods of kubelet", ask)
	if !errors.Is(refused, fs.ErrPermission) || h.Cluster.RecentPods == nil {
		return pods, refused
	}
	pods, err := h.Cluster.RecentPods(ctx)
	if err != nil {
		return nil, errors.Join(refused, err)
	}
	return pods, nil
}
