package release

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
)

// object is how the API shows a pod.
func (p *simPod) object(mirror bool) corev1.Pod {
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(p.uid), Namespace: "default", Name: p.name},
		Spec:       corev1.PodSpec{NodeName: "node"}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if p.life == succeeded {
		pod.Status.Phase = corev1.PodSucceeded
	}
	if p.life == static {
		pod.Namespace = "kube-system"
		pod.Annotations = map[string]string{"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": p.uid}
		if mirror {
			pod.UID = types.UID("mirror-" + p.uid)
			pod.Annotations["kubernetes.io/config.mirror"] = p.uid
		}
	}
	return pod
}

// known lists the live pods that a witness reports.
func (n *hostile) known(mirrors bool, lacks func(p *simPod) bool) []corev1.Pod {
	var pods []corev1.Pod
	for _, p := range n.sorted() {
		if p.life.alive() && (n.calm || !lacks(p)) {
			pods = append(pods, p.object(mirrors))
		}
	}
	return pods
}

// witnesses makes the host return the node's answers. A list that lacks a pod lacks it for the node's whole life: a
// wrong list stays wrong. Two witnesses never lack the same pod unless it runs, as the third one shows.
func (n *hostile) witnesses() {
	h := n.host
	victim := func(p *simPod) bool { return p.uid[0]%2 == 0 }
	kubelets := func() []corev1.Pod {
		return n.known(false, func(p *simPod) bool {
			return n.faults.halfBlind && p.life != static || n.faults.kubelet && p.life != static && victim(p)
		})
	}
	h.Kubelet.Pods = func(ctx context.Context) ([]corev1.Pod, error) {
		if err := n.called(ctx); err != nil {
			return nil, err
		}
		if n.faults.refused {
			return nil, fs.ErrPermission
		}
		return kubelets(), nil
	}
	h.Kubelet.PodNames = func(ctx context.Context) (map[string]int, error) {
		names, record := make(map[string]int), ""
		for _, p := range kubelets() {
			record += string(p.UID) + " "
			if p.Status.Phase == corev1.PodRunning {
				names[p.Namespace+"/"+p.Name]++
			}
		}
		n.write("/var/lib/kubelet/allocated_pods_state", record)
		return names, n.called(ctx)
	}
	h.Kubelet.Healthz = func(ctx context.Context) (string, error) { return "ok", n.called(ctx) }
	h.Kubelet.Metric = func(ctx context.Context, family string) (map[string]float64, error) {
		if n.faults.refused {
			return nil, fs.ErrPermission
		}
		if family != "kubelet_working_pods" {
			return map[string]float64{`git_version="v1.36.3"`: 1}, n.called(ctx)
		}
		return map[string]float64{`config="orphan",lifecycle="terminating",static=""`: 0}, n.called(ctx)
	}
	h.Kubelet.Process = func() (host.Process, error) { return host.Process{PID: 1, Comm: "kubelet"}, nil }
	h.Runtime.Process = func(ctx context.Context) (host.Process, error) { return host.Process{PID: 8}, n.called(ctx) }
	h.Runtime.Version = func(ctx context.Context) (*cri.VersionResponse, error) {
		return &cri.VersionResponse{RuntimeName: "simulated"}, n.called(ctx)
	}
	h.Runtime.Status = func(ctx context.Context) (*cri.StatusResponse, error) {
		status, _ := noSandboxes().Status(ctx)
		return status, n.called(ctx)
	}
	h.Runtime.Sandboxes = func(ctx context.Context) ([]*cri.PodSandbox, error) { return n.sandboxes(), n.called(ctx) }
	h.Runtime.Containers = func(ctx context.Context) ([]*cri.Container, error) { return n.containers(), n.called(ctx) }
	h.Cluster.Pods = func(ctx context.Context) ([]corev1.Pod, error) {
		if err := n.called(ctx); err != nil {
			return nil, err
		}
		return n.known(true, func(p *simPod) bool {
			return n.faults.empty || n.faults.halfBlind && p.life == running && victim(p) || n.faults.apiserver &&
				victim(p)
		}), nil
	}
	h.Cluster.Node = func(ctx context.Context) (*corev1.Node, error) {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"},
			Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{
				MachineID: "machine", BootID: "boot", KubeletVersion: "v1.36.3",
			}}}, n.called(ctx)
	}
	h.Cluster.Pod = func(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
		if err := n.called(ctx); err != nil {
			return nil, err
		}
		for _, p := range n.sorted() {
			if pod := p.object(true); p.life.alive() && pod.Name == name && pod.Namespace == namespace {
				return &pod, nil
			}
		}
		if resource := (schema.GroupResource{Resource: "pods"}); n.faults.node {
			return nil, apierrors.NewForbidden(resource, name,
				errors.New("no relationship found between node and this object"))
		} else {
			return nil, apierrors.NewNotFound(resource, name)
		}
	}
	h.Cluster.PodsNamed = func(ctx context.Context, namespace, name string) ([]corev1.Pod, error) {
		if err := n.called(ctx); err != nil {
			return nil, err
		}
		return slices.DeleteFunc(n.known(true, func(*simPod) bool { return false }), func(p corev1.Pod) bool {
			return p.Name != name || p.Namespace != namespace
		}), nil
	}
}

func (n *hostile) sandboxes() []*cri.PodSandbox {
	var all []*cri.PodSandbox
	for _, p := range n.sorted() {
		if p.sandbox != "" {
			pod := p.object(false)
			all = append(all, &cri.PodSandbox{
				Id: p.sandbox, CreatedAt: 7, State: cri.PodSandboxState_SANDBOX_READY, Annotations: pod.Annotations,
				Metadata: &cri.PodSandboxMetadata{Uid: p.uid, Namespace: pod.Namespace, Name: p.name},
			})
		}
	}
	return all
}

func (n *hostile) containers() []*cri.Container {
	var all []*cri.Container
	for _, p := range n.sorted() {
		if p.container == "" {
			continue
		}
		pod, state := p.object(false), cri.ContainerState_CONTAINER_EXITED
		if p.runs {
			state = cri.ContainerState_CONTAINER_RUNNING
		}
		all = append(all, &cri.Container{
			Id: p.container, PodSandboxId: p.sandbox, CreatedAt: 8, State: state,
			Metadata: &cri.ContainerMetadata{Name: "app"},
			Labels: map[string]string{
				"io.kubernetes.pod.uid": p.uid, "io.kubernetes.pod.namespace": pod.Namespace,
				"io.kubernetes.pod.name": p.name,
			},
		})
	}
	return all
}
