package inspect

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Heard is how a witness was asked. What it said counts only if Asked and no Err.
type Heard struct {
	Asked bool
	At    finding.Stamp
	Err   error
}

// OK reports whether the witness was asked and answered.
func (h Heard) OK() bool { return h.Asked && h.Err == nil }

// Truth is who may live on this node, as each witness says, and what is needed to believe them. It is gathered in an order
// on which everything rests:
//
//  1. the objects on the node,
//  2. the runtime and containerd,
//  3. kubelet,
//  4. the apiserver.
//
// A pod comes to be in the opposite order: the apiserver has it before kubelet, kubelet's /pods before any of its objects
// exist, containerd has a lease or a container before CRI lists the sandbox. So each witness is asked after everything
// that it must know if the object is a living or a starting pod's, and one that does not know the object then is no
// victim of the moment. The other direction, a pod that is just ending, can look like a leftover for a moment; such a pod
// lives no more, and the grace period leaves it to kubelet. UIDs never return: a list that did not have the UID of an
// object which was there before the list was made proves for ever that this pod is gone.
type Truth struct {
	Runtime    RuntimeTruth
	Containerd ContainerdTruth
	Kubelet    KubeletTruth
	Cluster    ClusterTruth
	Static     StaticTruth
	Own        string // UID of the agent's own pod; empty where it runs outside Kubernetes
}

// PodFact is what a witness says of one pod.
type PodFact struct {
	Pod
	Phase  string
	Static bool
}

// KubeletTruth is what kubelet says.
type KubeletTruth struct {
	Heard
	Pods   map[string]PodFact // by UID
	Age    time.Duration      // of the process
	AgeErr error

	// Working is how many pods kubelet still works on though they are no longer wanted (kubelet_working_pods): such pods
	// leave /pods at once when they are force-deleted. WorkingErr wraps host.ErrNotConfigured when kubelet does not count
	// them. Both are asked only when something is suspicious.
	Working    int
	WorkingErr error
}

// Gather asks the local witnesses, those that cost the apiserver nothing. The objects must have been listed before.
func Gather(ctx context.Context, scan *Scan) Truth {
	truth := Truth{Own: ownPod(scan)}
	truth.Runtime = askRuntime(ctx, scan)
	truth.Containerd = askContainerd(ctx, scan, truth.Runtime.Name)
	truth.Kubelet = askKubelet(ctx, scan)
	return truth
}

// Confirm asks what is only worth asking when something is suspicious: how many pods kubelet still works on, which static
// pods it should have, and, after everything else, the apiserver.
func (t *Truth) Confirm(ctx context.Context, scan *Scan, cluster bool) {
	t.Kubelet.Working, t.Kubelet.WorkingErr = askWorking(ctx, scan)
	t.Static = readManifests(scan, t.Kubelet.Pods)
	if cluster {
		t.Cluster = askCluster(ctx, scan, t.Kubelet.Pods)
	}
}

// ownPod returns the UID of the pod that the agent runs in.
func ownPod(scan *Scan) string {
	data, err := scan.Host.Files.Read("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	cgroups, err := host.ParseProcCgroups(data)
	if err != nil {
		return ""
	}
	pods := podLookup{paths: scan.Host.Paths, known: make(map[string]cgroupPod)}
	p, _, _ := pods.ofProcess(cgroups)
	return p.uid
}

func askKubelet(ctx context.Context, scan *Scan) KubeletTruth {
	k := KubeletTruth{Heard: Heard{Asked: true, At: scan.Host.Clock()}}
	pods, err := ask(ctx, "kubelet", scan.Host.Kubelet.Pods)
	k.Err = err
	k.Pods = podFacts(pods)
	process, err := scan.kubelet()
	k.Age, k.AgeErr = process.Age(scan.Host.Clock().Up), err
	return k
}

// podFacts indexes pods by every UID that stands for them.
func podFacts(pods []corev1.Pod) map[string]PodFact {
	known := make(map[string]PodFact, len(pods))
	for i := range pods {
		pod := &pods[i]
		source := pod.Annotations[sourceAnnotation]
		fact := PodFact{
			Pod:    Pod{UID: host.NodePodUID(pod), Namespace: pod.Namespace, Name: pod.Name},
			Phase:  string(pod.Status.Phase),
			Static: source != "" && source != "api",
		}
		known[fact.UID] = fact
		known[string(pod.UID)] = fact
	}
	delete(known, "") // a pod without UID stands for nothing
	return known
}

// workingFamily is kubelet's count of pods by lifecycle, since v1.27.
const workingFamily = "kubelet_working_pods"

// askWorking counts the pods that kubelet works on though neither the apiserver nor a manifest wants them any more.
func askWorking(ctx context.Context, scan *Scan) (int, error) {
	if scan.Host.Kubelet.Metric == nil {
		return 0, fmt.Errorf("kubelet's metrics: %w", host.ErrNotConfigured)
	}
	samples, err := scan.Host.Kubelet.Metric(ctx, workingFamily)
	if err != nil {
		return 0, err
	}
	if len(samples) == 0 {
		return 0, errNoMetric
	}
	working := 0
	for labels, value := range samples {
		if hasLabel(labels, "config", "orphan", "runtime_only") && hasLabel(labels, "lifecycle", "sync", "terminating") {
			working += int(value)
		}
	}
	return working, nil
}

// errNoMetric says that kubelet does not have workingFamily.
var errNoMetric = errors.New("kubelet has no metric " + workingFamily)

// hasLabel reports whether a label string as of host.Kubelet.Metric gives a label one of the values.
func hasLabel(labels, name string, values ...string) bool {
	for _, value := range values {
		if containsLabel(labels, name+"="+strconv.Quote(value)) {
			return true
		}
	}
	return false
}
