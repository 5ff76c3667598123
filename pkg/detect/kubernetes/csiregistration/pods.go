package csiregistration

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// csiPodsEvery is how often kubelet's pods are read without a fault.
const csiPodsEvery = time.Minute

// csiPods keeps kubelet's pods between runs: /pods of a full node is a megabyte of JSON.
type csiPods struct {
	read   finding.Timestamp
	pods   []corev1.Pod
	usedBy map[string][]string // by driver: pods with volumes of it
	// drivers whose volumes are or were mounted here
	mounted map[string]bool
}

// refresh reads the pods if they are old, or at once during a fault.
func (p *csiPods) refresh(ctx context.Context, h *host.Host, now finding.Timestamp, urgent bool) error {
	if h.Kubelet.Pods == nil {
		return fmt.Errorf("pods of kubelet: %w", hosterr.ErrNotConfigured)
	}
	if !p.read.IsZero() && !urgent && now.Since(p.read) < csiPodsEvery {
		return nil
	}
	pods, err := discover.NodePods(ctx, h)
	if err != nil {
		return fmt.Errorf("pods of kubelet: %w", err)
	}
	p.read, p.pods = now, pods
	p.usedBy, p.mounted = csiVolumesUsed(h, pods)
	return nil
}

// csiPod is a pod on this node that runs a driver or its registrar.
type csiPod struct {
	Name     string        // namespace/name
	Driver   string        // name of the driver's folder in <kubelet root>/plugins, by convention the driver's name
	Endpoint string        // --kubelet-registration-path of the registrar; empty if there is none
	Sure     bool          // a registrar names it; else it is derived from the folders that the pod mounts
	Critical bool          // priority class system-node-critical, in a namespace of the cluster's own
	Up       time.Duration // since its youngest container started; negative while it ends
	Restarts int32         // of the container that restarted most
	LastEnd  string        // how the latter container ended
}

// csiPodsOf finds the pods that run CSI drivers.
func csiPodsOf(pods []corev1.Pod, kubeletRoot string, now time.Time) []csiPod {
	var found []csiPod
	for i := range pods {
		pod := &pods[i]
		if checkkit.PodFinished(pod) {
			continue
		}
		p, ok := csiPodOf(pod, kubeletRoot)
		if !ok {
			continue
		}
		p.Name = pod.Namespace + "/" + pod.Name
		p.Critical = pod.Spec.PriorityClassName == "system-node-critical" && pod.Namespace == metav1.NamespaceSystem
		p.life(pod, now)
		found = append(found, p)
	}
	return found
}

// csiPodOf derives the driver from a registrar's arguments, or else from the folders that the pod mounts. A pod without
// a directory of the host cannot register a driver, whatever its arguments name.
func csiPodOf(pod *corev1.Pod, kubeletRoot string) (csiPod, bool) {
	if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil }) {
		return csiPod{}, false
	}
	for i := range pod.Spec.Containers {
		endpoint := kubelet.RegistrationPath(&pod.Spec.Containers[i])
		driver := path.Base(path.Dir(endpoint))
		if path.IsAbs(endpoint) && kubelet.IsCSIDriverName(driver) {
			return csiPod{Driver: driver, Endpoint: path.Clean(endpoint), Sure: true}, true
		}
	}
	driver, registers := "", false
	for _, volume := range pod.Spec.Volumes {
		if volume.HostPath == nil {
			continue
		}
		dir := path.Clean(volume.HostPath.Path)
		registers = registers || dir == filepath.Join(kubeletRoot, "plugins_registry")
		if path.Dir(dir) == filepath.Join(kubeletRoot, "plugins") && kubelet.IsCSIDriverName(path.Base(dir)) &&
			path.Base(dir) != "kubernetes.io" {
			driver = path.Base(dir)
		}
	}
	return csiPod{Driver: driver}, registers && driver != ""
}

// life reads from the pod's status how long it has been up and how often it failed.
func (p *csiPod) life(pod *corev1.Pod, now time.Time) {
	p.Up = now.Sub(pod.CreationTimestamp.Time)
	if pod.DeletionTimestamp != nil { // being replaced: the time by which it must be gone counts
		p.Up = now.Sub(pod.DeletionTimestamp.Time)
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Running != nil {
			p.Up = min(p.Up, now.Sub(c.State.Running.StartedAt.Time))
		}
		if c.RestartCount <= p.Restarts {
			continue
		}
		p.Restarts = c.RestartCount
		end := c.LastTerminationState.Terminated
		if end == nil {
			end = c.State.Terminated
		}
		if end != nil {
			p.LastEnd = checkkit.Sanitize(fmt.Sprintf(
				"%s has restarted %d times, the last time with exit code %d (%s) %s",
				c.Name, c.RestartCount, end.ExitCode, end.Reason, end.Message), 300)
		}
	}
}
