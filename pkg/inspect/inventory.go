package inspect

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Heard is how a witness was asked. What it said counts only if Asked and no Err.
type Heard struct {
	Asked bool
	At    finding.Timestamp
	Err   error
}

// OK reports whether the witness was asked and answered.
func (h Heard) OK() bool { return h.Asked && h.Err == nil }

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
	Runtime    RuntimeTruth
	Containerd ContainerdTruth
	Kubelet    KubeletTruth
	Cluster    ClusterTruth
	Static     StaticTruth
	Others     OthersTruth
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

// KubeletTruth is what kubelet says.
type KubeletTruth struct {
	Heard
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
	var truth Inventory
	var err error
	truth.Own, err = within(ctx, scan.ends, stageLocal, "/proc/self", func(context.Context) (string, error) {
		return ownPod(scan), nil
	})
	if err != nil {
		truth.Own = unknownPod
	}
	sideBySide(scan.ends, 2, func(i int) {
		if i == 0 {
			truth.Runtime = witness(ctx, scan, stageRuntime, "the runtime", askRuntime, func(h Heard) RuntimeTruth {
				return RuntimeTruth{Heard: h}
			})
		} else {
			truth.Containerd = witness(ctx, scan, stageRuntime, "containerd", askContainerd,
				func(h Heard) ContainerdTruth { return ContainerdTruth{Heard: h} })
		}
	})
	if name := truth.Runtime.Name; name != "" && name != "containerd" {
		truth.Containerd = ContainerdTruth{Other: name}
	}
	truth.Kubelet = witness(ctx, scan, stageKubelet, "kubelet", askKubelet, func(h Heard) KubeletTruth {
		return KubeletTruth{Heard: h}
	})
	truth.Others, err = within(ctx, scan.ends, stageKubelet, "the search for other kubelets",
		func(ctx context.Context) (OthersTruth, error) {
			return askOthers(ctx, scan), nil
		})
	if err != nil {
		truth.Others = OthersTruth{Err: err}
	}
	return truth
}

// witness asks one witness; one that hangs was asked and not heard.
func witness[T any](ctx context.Context, scan *Scan, s stage, who string, ask func(context.Context, *Scan) T,
	unheard func(Heard) T) T {
	at := scan.Host.Clock()
	said, err := within(ctx, scan.ends, s, who, func(ctx context.Context) (T, error) { return ask(ctx, scan), nil })
	if err != nil {
		return unheard(Heard{Asked: true, At: at, Err: err})
	}
	return said
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
		func(context.Context) (StaticTruth, error) {
			return readManifests(scan, t.Kubelet.Pods), nil
		})
	if err != nil {
		t.Static = StaticTruth{Asked: true, Err: err}
	}
	if cluster {
		local := *t
		t.Cluster = witness(ctx, scan, stageApiserver, "the apiserver",
			func(ctx context.Context, scan *Scan) ClusterTruth {
				return askCluster(ctx, scan, &local)
			}, func(h Heard) ClusterTruth { return ClusterTruth{Heard: h} })
	}
}

// ownPod returns the UID of the pod that the agent runs in.
func ownPod(scan *Scan) string {
	cgroups, err := scan.Host.OwnCgroups()
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
