package checkkit

import (
	"cmp"
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/podstate"
)

// PodOfProcess returns the pod that a process belongs to by its cgroups.
func PodOfProcess(h *host.Host, pid int) (string, bool) {
	cgroups, err := h.ProcCgroups(pid)
	if err != nil {
		return "", false
	}
	for _, cgroup := range cgroups {
		if uid, _, ok := h.Paths.PodOfCgroup(cgroup); ok {
			return uid, true
		}
	}
	return "", false
}

// PodNames replaces UIDs by namespace/name if kubelet knows them, sorted.
func PodNames(ctx context.Context, h *host.Host, uids []string) []string {
	if len(uids) == 0 {
		return nil
	}
	known := KubeletNames(ctx, h)
	for i, uid := range uids {
		uids[i] = cmp.Or(known[uid], uid)
	}
	slices.Sort(uids)
	return uids
}

// KubeletNames asks kubelet for its pods: UID to namespace/name. It is empty if kubelet does not answer within 2
// seconds.
func KubeletNames(ctx context.Context, h *host.Host) map[string]string {
	names, _ := KubeletPods(ctx, h)
	return names
}

// KubeletPods is KubeletNames, with the UIDs of the pods whose containers have not all terminated for good.
func KubeletPods(ctx context.Context, h *host.Host) (names map[string]string, unfinished map[string]bool) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	pods, err := discover.NodePods(ctx, h)
	if err != nil {
		return nil, nil
	}
	names, unfinished = make(map[string]string, len(pods)), make(map[string]bool)
	for i := range pods {
		uid := host.NodePodUID(&pods[i])
		names[uid] = pods[i].Namespace + "/" + pods[i].Name
		unfinished[uid] = !PodFinished(&pods[i])
	}
	return names, unfinished
}

// PodFinished reports whether all containers of a pod have terminated for good.
func PodFinished(pod *corev1.Pod) bool { return podstate.IsFinished(pod) }

// PodName returns namespace/name of a pod, for a message.
func PodName(pod *corev1.Pod) string {
	return Sanitize(pod.Namespace, 63) + "/" + Sanitize(pod.Name, 253)
}
