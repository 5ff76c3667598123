package follow

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/stage"
)

// initWaits is a pod with a waiting init container; ended is its earlier exit code, if any.
func initWaits(why, text string, ended ...int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		bound(p)
		p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "b:1"}}
		status := corev1.ContainerStatus{Name: "i",
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: why, Message: text}}}
		for _, code := range ended {
			status.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error",
				StartedAt: p.CreationTimestamp, FinishedAt: p.CreationTimestamp}
		}
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{status}
		waiting("PodInitializing", "")(p)
	}
}

// Without Events and without the sandbox condition, the containers' statuses alone show the open stage.
func TestStageByStatusAlone(t *testing.T) {
	const noStart = `exec: "x": executable file not found in $PATH`
	tests := map[string]struct {
		shows  func(*corev1.Pod)
		reason string
		want   stage.ID
	}{
		"nothing":          {waiting("ContainerCreating", ""), "SandboxFailed", stage.Sandbox},
		"ErrImagePull":     {waiting("ErrImagePull", "a:1: not found"), "ImageNotFound", stage.Pull},
		"ImagePullBackOff": {waiting("ImagePullBackOff", `Back-off pulling image "a:1"`), "ImagePullFailed", stage.Pull},
		"InvalidImageName": {waiting("InvalidImageName", ""), "InvalidImageName", stage.Pull},
		"config":           {waiting("CreateContainerConfigError", `secret "x" not found`), "ConfigMissing", stage.Start},
		"create":           {waiting("CreateContainerError", "name is reserved"), "RuntimeError", stage.Start},
		"no start":         {waiting("RunContainerError", noStart), "CommandFailed", stage.Start},
		"crash":            {waiting("CrashLoopBackOff", "back-off"), "CrashLoopBackOff", stage.BecomeReady},
		"crash, no start": {func(p *corev1.Pod) {
			waiting("CrashLoopBackOff", "back-off")(p)
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: "StartError", Message: noStart}
		}, "CommandFailed", stage.Start},
		"init: ImagePullBackOff": {initWaits("ImagePullBackOff", "b:1: not found"), "ImageNotFound", stage.Pull},
		"init: config":           {initWaits("CreateContainerConfigError", `configmap "x" not found`), "ConfigMissing", stage.Start},
		"init: crash":            {initWaits("CrashLoopBackOff", "back-off", 1), "InitFailed", stage.Init},
		"init: crash, no state":  {initWaits("CrashLoopBackOff", "back-off"), "InitFailed", stage.Init},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(Config{})
			w.shows(newPod("a", tt.shows), 5)
			w.until(70)
			if len(w.judged) != 1 {
				t.Fatal(w.outcomes())
			}
			a := w.judged[0]
			if string(a.First.Reason) != tt.reason || a.First.Stage != tt.want {
				t.Errorf("%s in %s, want %s in %s", a.First.Reason, a.First.Stage, tt.reason, tt.want)
			}
			var open []stage.ID
			for _, s := range stage.Of(&a.Timeline, a.JudgedAt) {
				if s.Open() {
					open = append(open, s.ID)
				}
			}
			if len(open) != 1 || open[0] != tt.want {
				t.Errorf("open: %v, want %s alone", open, tt.want)
			}
		})
	}
}

// A pull known only from a status ends when the container starts.
func TestPullByStatusEnds(t *testing.T) {
	w := newWorld(Config{})
	w.shows(newPod("a", waiting("ErrImagePull", "a:1: not found")), 5)
	w.shows(newPod("a", readyAt(20)), 20)
	w.until(30)
	if w.outcomes() != "creation delivered" {
		t.Fatal(w.outcomes())
	}
	for _, s := range stage.Of(&w.judged[0].Timeline, second(30)) {
		if s.Open() {
			t.Errorf("%s is open", s.ID)
		}
	}
}

// The runtime may learn that the kernel ended a container for its memory after kubelet has reported the end.
func TestOOMKillKnownLater(t *testing.T) {
	exits := func(reason string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			bound(p)
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: 137, Reason: reason, StartedAt: p.CreationTimestamp, FinishedAt: p.CreationTimestamp}}}}
		}
	}
	w := newWorld(Config{})
	w.shows(newPod("a", exits("Error")), 5)
	w.shows(newPod("a", exits("OOMKilled")), 6)
	w.until(70)
	if w.outcomes() != "creation missed OOMKilledByNode" {
		t.Error(w.outcomes())
	}
}

// A verdict carries the software of the pod's node, and its pool.
func TestBuildOfTheNode(t *testing.T) {
	w := newWorld(Config{PoolLabel: "pool"})
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"pool": "gpu"}}}
	n.Status.NodeInfo = corev1.NodeSystemInfo{KubeletVersion: "v1.36.3", ContainerRuntimeVersion: "containerd://2.1", OSImage: "Debian", KernelVersion: "6.1"}
	w.Node(n, false, second(0))
	w.shows(newPod("a", readyAt(3)), 3)
	w.until(10)
	want := record.Build{Pool: "gpu", Kubelet: "v1.36.3", Runtime: "containerd://2.1", System: "Debian, 6.1"}
	if got := w.Builds()[w.judged[0].Timeline.Build]; got != want {
		t.Errorf("%+v of %d", got, w.judged[0].Timeline.Build)
	}
}

// A verdict carries the versions of the plugins that set up networks and volumes on the pod's node, also while these restart, and
// those of the control plane, unless its replicas differ.
func TestBuildOfTheCluster(t *testing.T) {
	w := newWorld(Config{})
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	n.Status.NodeInfo = corev1.NodeSystemInfo{KubeletVersion: "v1.36.3", ContainerRuntimeVersion: "r", OSImage: "o", KernelVersion: "k"}
	w.Node(n, false, second(0))
	software := func(name, owner, image, path string) *corev1.Pod {
		return newPod(name, bound, func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: owner, UID: types.UID(owner), Controller: new(true)}}
			p.Spec.Containers[0].Image = image
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}}}
		})
	}
	static := func(component, on, image string) *corev1.Pod {
		return newPod(component+on, func(p *corev1.Pod) {
			p.Namespace, p.Spec.NodeName, p.Labels = "kube-system", on, map[string]string{"component": component}
			p.Annotations = map[string]string{"kubernetes.io/config.mirror": "x"}
			p.Spec.Containers[0].Image = "registry.k8s.io/" + image
		})
	}
	imitated := static("kube-scheduler", "n", "evil:v1")
	imitated.Namespace, imitated.UID = "tenant", "imitated"
	network := software("net", "cni", "quay.io/calico/node:v3.30.1", "/etc/cni/net.d/")
	for _, p := range []*corev1.Pod{network, software("csi", "csi", "example.com/csi:v2", "/var/lib/kubelet/plugins_registry"),
		software("log", "logs", "logs:v9", "/var/log"), static("kube-scheduler", "n", "kube-scheduler:v1.36.3"), imitated,
		static("kube-apiserver", "n", "kube-apiserver:v1.36.3"), static("kube-apiserver", "m", "kube-apiserver:v1.36.4")} {
		w.shows(p, 1)
	}
	w.Pod(network, Gone, second(2))
	w.shows(newPod("a", readyAt(3)), 3)
	w.until(10)
	want := record.Build{Kubelet: "v1.36.3", Runtime: "r", System: "o, k", Network: "node:v3.30.1", Storage: "csi:v2", Scheduler: "kube-scheduler:v1.36.3"}
	i := slices.IndexFunc(w.judged, func(a Act) bool { return a.Timeline.Name == "a" })
	if got := w.Builds()[w.judged[i].Timeline.Build]; got != want {
		t.Errorf("%+v", got)
	}
}

// The load of a node is the largest share that its pods request; those that have ended need no room.
func TestLoad(t *testing.T) {
	w := newWorld(Config{})
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("10")}
	w.Node(n, false, second(0))
	load := func(pods int, want float64) {
		t.Helper()
		if got := w.NodeList()["n"]; got.Pods != pods || got.Load != want {
			t.Errorf("%d pods, load %v, want %d and %v", got.Pods, got.Load, pods, want)
		}
	}
	load(0, 0)
	large := newPod("large", readyAt(2), func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"memory": resource.MustParse("6Gi")}
	})
	ended := newPod("ended", readyAt(2), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	w.shows(newPod("a", readyAt(2)), 3)
	w.shows(ended, 3)
	load(1, 0.25)
	w.shows(large, 4)
	load(2, 0.75)
	w.Pod(large, Gone, second(5))
	load(1, 0.25)
	for i := range 8 {
		w.shows(newPod(fmt.Sprint("small", i), readyAt(2), func(p *corev1.Pod) { p.Spec.Containers[0].Resources = corev1.ResourceRequirements{} }), 6)
	}
	load(9, 0.9)
}
