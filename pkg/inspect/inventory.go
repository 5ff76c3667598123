package inspect

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Response is how a witness was asked. What it said counts only if Asked and no Err.
type Response struct {
	Asked bool
	At    finding.Timestamp
	Err   error
}

// OK reports whether the witness was asked and answered.
func (h Response) OK() bool { return h.Asked && h.Err == nil }

// Inventory is who may live on this node, as each witness says, and what is needed to believe them. It is gathered in
// an order on which everything rests:
//
//  1. the objects on the node,
//  2. the runtime and containerd,
//  3. kubelet,
//  4. the apiserver.
//
// A pod comes to be in the opposite order: the apiserver has it before kubelet, kubelet's /pods before any of its
// objects exist, containerd has a lease or a container before CRI lists the sandbox. So each witness is asked after
// everything that it must know if the object is a living or a starting pod's, and one that does not know the object
// then is no victim of the moment. The other direction, a pod that is just ending, can look like a leftover for a
// moment; such a pod lives no more, and the grace period leaves it to kubelet. UIDs never return: a list that did not
// have the UID of an object which was there before the list was made proves for ever that this pod is gone.
type Inventory struct {
	Runtime    RuntimeInventory
	Containerd ContainerdInventory
	Kubelet    KubeletInventory
	Cluster    ClusterInventory
	Static     StaticPodInventory
	Others     OtherKubelets
	Named      map[string]NameAnswer // of pods that the apiserver was asked for by name in this pass, by UID
	Own        string                // UID of the agent's own pod; empty where it runs outside Kubernetes
}

// PodFact is what a witness says of one pod.
type PodFact struct {
	Pod
	Phase   string
	Static  bool // kubelet's word: not from the apiserver
	Mirror  bool // the apiserver's word: it only mirrors a static pod, and is made by kubelet itself
	Started bool // kubelet has noted in the apiserver that it knows of it
}

// KubeletInventory is what kubelet says.
type KubeletInventory struct {
	Response
	Pods   map[string]PodFact // by UID
	Age    time.Duration      // of the process
	AgeErr error

	// Working is how many pods kubelet still works on though they are no longer wanted (kubelet_working_pods): such
	// pods leave /pods at once when they are force-deleted. WorkingErr wraps host.ErrNotConfigured when there is
	// nobody to ask, and errNoMetric when kubelet does not count them (yet); Version, its own word
	// (kubernetes_build_info), is asked then. All are asked only when something is suspicious.
	Working    int
	WorkingErr error
	Version    string
}

// Gather asks the local witnesses, those that cost the apiserver nothing. The objects must have been listed before.
func Gather(ctx context.Context, scan *Scan) Inventory {
	var inventory Inventory
	var err error
	inventory.Own, err = within(ctx, scan.ends, stageLocal, "/proc/self", func(context.Context) (string, error) {
		return ownPod(scan), nil
	})
	if err != nil {
		inventory.Own = unknownPod
	}
	parallel(scan.ends, 2, func(i int) {
		if i == 0 {
			inventory.Runtime = askWitness(ctx, scan, stageRuntime, "the runtime", askRuntime,
				func(h Response) RuntimeInventory {
					return RuntimeInventory{Response: h}
				})
		} else {
			inventory.Containerd = askWitness(ctx, scan, stageRuntime, "containerd", askContainerd,
				func(h Response) ContainerdInventory { return ContainerdInventory{Response: h} })
		}
	})
	if name := inventory.Runtime.Name; name != "" && name != "containerd" {
		inventory.Containerd = ContainerdInventory{Other: name}
	}
	inventory.Kubelet = askWitness(ctx, scan, stageKubelet, "kubelet", askKubelet, func(h Response) KubeletInventory {
		return KubeletInventory{Response: h}
	})
	inventory.Others, err = within(ctx, scan.ends, stageKubelet, "the search for other kubelets",
		func(ctx context.Context) (OtherKubelets, error) {
			return askOthers(ctx, scan), nil
		})
	if err != nil {
		inventory.Others = OtherKubelets{Err: err}
	}
	return inventory
}

// askWitness asks one witness; one that hangs was asked and not heard.
func askWitness[T any](ctx context.Context, scan *Scan, s stage, who string, ask func(context.Context, *Scan) T,
	failed func(Response) T) T {
	at := scan.Host.Clock()
	answer, err := within(ctx, scan.ends, s, who, func(ctx context.Context) (T, error) { return ask(ctx, scan), nil })
	if err != nil {
		return failed(Response{Asked: true, At: at, Err: err})
	}
	return answer
}

// unknownPod stands for the agent's own pod where nobody can say whether it is in one: no list has it.
const unknownPod = "unknown"

// Confirm asks what is only worth asking when something is suspicious: how many pods kubelet still works on, which
// static pods it should have, and, after everything else, the apiserver.
func (t *Inventory) Confirm(ctx context.Context, scan *Scan, cluster bool) {
	t.Kubelet.Working, t.Kubelet.WorkingErr = within(ctx, scan.ends, stageCounts, "kubelet",
		func(ctx context.Context) (int, error) {
			return askWorking(ctx, scan)
		})
	if errors.Is(t.Kubelet.WorkingErr, errNoMetric) {
		t.Kubelet.Version, _ = within(ctx, scan.ends, stageCounts, "kubelet", func(ctx context.Context) (string,
			error) {
			return askVersion(ctx, scan), nil
		}) // not known is not old
	}
	var err error
	t.Static, err = within(ctx, scan.ends, stageCounts, "the directory of manifests",
		func(context.Context) (StaticPodInventory, error) {
			return readManifests(scan, t.Kubelet.Pods), nil
		})
	if err != nil {
		t.Static = StaticPodInventory{Asked: true, Err: err}
	}
	if cluster {
		local := *t
		t.Cluster = askWitness(ctx, scan, stageApiserver, "the apiserver",
			func(ctx context.Context, scan *Scan) ClusterInventory {
				return askCluster(ctx, scan, &local)
			}, func(h Response) ClusterInventory { return ClusterInventory{Response: h} })
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

func askKubelet(ctx context.Context, scan *Scan) KubeletInventory {
	k := KubeletInventory{Response: Response{Asked: true, At: scan.Host.Clock()}}
	pods, err := ask(ctx, "kubelet", scan.Host.Kubelet.Pods)
	k.Err = err
	k.Pods = podFacts(pods)
	process, err := scan.kubelet()
	k.Age, k.AgeErr = process.Age(scan.Host.Clock().SinceBoot), err
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
			Mirror: pod.Annotations[mirrorAnnotation] != "",

			Started: pod.Status.StartTime != nil,
		}
		known[fact.UID] = fact
		known[string(pod.UID)] = fact
	}
	delete(known, "") // a pod without UID stands for nothing
	return known
}
