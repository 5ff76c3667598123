// Package witness asks who knows a pod: kubelet, the runtime, containerd, the apiserver, the manifests of static pods. An
// Inventory holds their answers, and says what each of them answers about an object.
package witness

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Response tells whether and when a witness was asked. Its data counts only if it was asked and there is no error.
type Response struct {
	Asked bool
	At    finding.Timestamp
	Err   error `json:"-"` // see inventoryErrors
}

// OK reports whether the witness was asked and answered.
func (h Response) OK() bool { return h.Asked && h.Err == nil }

// Inventory holds the pods that may exist on this node according to each witness, and the data needed to trust them. It
// is gathered in an order that every verdict relies on:
//
//  1. the objects on the node,
//  2. the runtime and containerd,
//  3. kubelet,
//  4. the apiserver,
//  5. kubelet once more, only if its pods and the apiserver's list disagree.
//
// A pod is created in the opposite order: the apiserver has it before kubelet, kubelet's /pods has it before any of its
// objects exist, containerd has a lease or a container before CRI lists the sandbox. So each witness is asked after the
// listing of the objects that it must know if they belong to a living or starting pod, and a race cannot make a witness
// deny them. In the other direction, a terminating pod can look like a leftover for a moment; such a pod is no longer
// running, and the grace period leaves it to kubelet. UIDs are never reused: a list without the UID of an object that
// existed before the list was made proves permanently that this pod is gone.
type Inventory struct {
	Runtime    RuntimeInventory
	Containerd ContainerdInventory
	Kubelet    KubeletInventory
	Cluster    ClusterInventory
	Static     StaticPodInventory
	Others     OtherKubelets
	Named      map[string]object.NameAnswer // answers of this pass about pods by name, by UID
	Removed    map[string]bool              // UIDs of pods whose directories are gone since they were listed: see noteRemoved
	Unlisted   map[object.Kind]bool         // kinds of which objects may have been missed
	Own        string                       // UID of the agent's own pod; empty where it runs outside Kubernetes
}

// PodFact is one witness's statement about one pod.
type PodFact struct {
	object.Pod
	Phase   string
	Static  bool // according to kubelet: not from the apiserver
	Mirror  bool // according to the apiserver: a mirror of a static pod, created by kubelet itself
	Started bool // kubelet has set its status in the apiserver, so it knows the pod

	Mounting  bool     // it has claims of volumes, and no container of it has started yet
	Ended     bool     // it has succeeded or failed
	Ready     bool     // all of its containers are
	HostPaths []string // directories of the node that it mounts
	OptOut    string   `json:",omitempty"` // why no object of it may be released
}

// KubeletInventory is what kubelet reports.
type KubeletInventory struct {
	Response
	Pods   map[string]PodFact // by UID
	Again  map[string]PodFact // a second answer, after the apiserver's; nil without one. See compareAgain
	Age    time.Duration      // of the process
	AgeErr error              `json:"-"`

	// Names is set if /pods is refused and podresources answers: "namespace/name" with the number of pods. Pods then
	// has those whose UID is known otherwise. See podresources.go.
	Names     map[string]int
	Refused   error  `json:"-"` // why there are only names
	HealthErr error  `json:"-"` // of healthz, in the place of Working
	Record    string // kubelet's allocatedPods, read like Working
	RecordErr error  `json:"-"`
	named     map[string]namedPods
	unproven  string // a name whose pod is not identified

	// Working is the number of pods that kubelet still works on although they are no longer wanted
	// (kubelet_working_pods): force-deleted pods leave /pods at once. WorkingErr wraps hosterr.ErrNotConfigured if
	// there is no kubelet to ask, and errNoMetric if kubelet does not count them (yet); then Version is read from
	// kubelet itself (kubernetes_build_info). All of this is read only if something is suspicious.
	Working    int
	WorkingErr error `json:"-"`
	Version    string
}

// Gather asks the local witnesses, which cause no load on the apiserver. The objects must have been listed before.
func Gather(ctx context.Context, scan *hostscan.Scan) Inventory {
	var inventory Inventory
	var err error
	inventory.Own, err = hostscan.Within(ctx, scan.Ends, hostscan.Local, "/proc/self", func(context.Context) (string,
		error) {
		return scan.OwnPod(), nil
	})
	if err != nil {
		inventory.Own = UnknownPod
	}
	hostscan.Parallel(scan.Ends, 2, func(i int) {
		if i == 0 {
			inventory.Runtime = askWitness(ctx, scan, hostscan.Runtime, "the runtime", askRuntime,
				func(h Response) RuntimeInventory {
					return RuntimeInventory{Response: h}
				})
		} else {
			inventory.Containerd = askWitness(ctx, scan, hostscan.Runtime, "containerd", askContainerd,
				func(h Response) ContainerdInventory { return ContainerdInventory{Response: h} })
		}
	})
	if name := inventory.Runtime.Name; name != "" && name != "containerd" {
		inventory.Containerd = ContainerdInventory{Other: name}
	}
	inventory.Kubelet = askWitness(ctx, scan, hostscan.Kubelet, "kubelet", AskKubelet,
		func(h Response) KubeletInventory {
			return KubeletInventory{Response: h}
		})
	inventory.Others, err = hostscan.Within(ctx, scan.Ends, hostscan.Kubelet, "the search for other kubelets",
		func(ctx context.Context) (OtherKubelets, error) {
			return askOthers(ctx, scan), nil
		})
	if err != nil {
		inventory.Others = OtherKubelets{Err: err}
	}
	return inventory
}

// askWitness asks one witness. One that hangs counts as asked without an answer.
func askWitness[T any](ctx context.Context, scan *hostscan.Scan, s hostscan.Stage, who string,
	ask func(context.Context, *hostscan.Scan) T,
	failed func(Response) T) T {
	at := scan.Host.Clock()
	answer, err := hostscan.Within(ctx, scan.Ends, s, who, func(ctx context.Context) (T, error) {
		return ask(ctx,
			scan), nil
	})
	if err != nil {
		return failed(Response{Asked: true, At: at, Err: err})
	}
	return answer
}

// UnknownPod stands for the agent's own pod if it is unknown whether the agent runs in one: no list contains it.
const UnknownPod = "unknown"

// Confirm gathers further data if anything is suspicious: how many pods kubelet still works on, which static pods it
// should have, and last of all the apiserver's list, unless the last one is enough.
func (t *Inventory) Confirm(ctx context.Context, scan *hostscan.Scan, s object.Settings, cluster bool) {
	t.confirmKubelet(ctx, scan)
	var err error
	t.Static, err = hostscan.Within(ctx, scan.Ends, hostscan.Counts, "the directory of manifests",
		func(context.Context) (StaticPodInventory, error) {
			return ReadManifests(scan, t.Kubelet.Pods), nil
		})
	if err != nil {
		t.Static = StaticPodInventory{Asked: true, Err: err}
	}
	if cluster {
		local := *t
		t.Cluster = askWitness(ctx, scan, hostscan.Apiserver, "the apiserver",
			func(ctx context.Context, scan *hostscan.Scan) ClusterInventory {
				return askCluster(ctx, scan, &local, s)
			}, func(h Response) ClusterInventory { return ClusterInventory{Response: h} })
		t.Kubelet.Again, t.Cluster.again = t.Cluster.again, nil // of this pass only: the list may be kept for others
	}
}

// confirmKubelet asks which pods kubelet still works on. If its metrics are refused like its /pods, it must at least be
// healthy, which anyone may ask.
func (t *Inventory) confirmKubelet(ctx context.Context, scan *hostscan.Scan) {
	k := &t.Kubelet
	k.Working, k.WorkingErr = hostscan.Within(ctx, scan.Ends, hostscan.Counts, "kubelet",
		func(ctx context.Context) (int, error) {
			return askWorking(ctx, scan)
		})
	if errors.Is(k.WorkingErr, ErrNoMetric) {
		k.Version, _ = hostscan.Within(ctx, scan.Ends, hostscan.Counts, "kubelet", func(ctx context.Context) (string,
			error) {
			return askVersion(ctx, scan), nil
		}) // an unknown version does not count as an old one
	}
	if !k.ByName() {
		return
	}
	k.Record, k.RecordErr = hostscan.Within(ctx, scan.Ends, hostscan.Counts, AllocatedPods,
		func(context.Context) (string, error) {
			return readAllocated(scan.Host)
		})
	if k.Uncounted() {
		_, k.HealthErr = hostscan.Within(ctx, scan.Ends, hostscan.Counts, "kubelet",
			func(ctx context.Context) (string, error) {
				return host.Ask(ctx, "kubelet's healthz", scan.Host.Kubelet.Healthz)
			})
	}
}

func AskKubelet(ctx context.Context, scan *hostscan.Scan) KubeletInventory {
	k := KubeletInventory{Response: Response{Asked: true, At: scan.Host.Clock()}}
	pods, err := host.Ask(ctx, "kubelet", scan.Host.Kubelet.Pods)
	k.Err = err
	k.Pods = podFacts(pods, scan.OptOut)
	k.askNames(ctx, scan.Host)
	process, err := scan.Kubelet()
	k.Age, k.AgeErr = process.Age(scan.Host.Clock().SinceBoot), err
	return k
}

// mounting reports whether kubelet may still be preparing the volumes of a pod.
func mounting(pod *corev1.Pod) bool {
	pending := pod.Status.Phase == corev1.PodPending || pod.Status.Phase == ""
	return pending && slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.EmptyDir == nil && v.Secret == nil && v.ConfigMap == nil && v.Projected == nil &&
			v.DownwardAPI == nil &&
			v.HostPath == nil
	})
}

// podFacts indexes pods by every UID that stands for them. optOut evaluates their labels and annotations, or is nil.
func podFacts(pods []corev1.Pod, optOut func(labels, annotations map[string]string) string) map[string]PodFact {
	known := make(map[string]PodFact, len(pods))
	for i := range pods {
		pod := &pods[i]
		source := pod.Annotations[SourceAnnotation]
		fact := PodFact{
			Pod:    object.Pod{UID: host.NodePodUID(pod), Namespace: pod.Namespace, Name: pod.Name},
			Phase:  string(pod.Status.Phase),
			Static: source != "" && source != "api",
			Mirror: pod.Annotations[MirrorAnnotation] != "",

			Started:  pod.Status.StartTime != nil,
			Mounting: mounting(pod),
			Ended:    pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed,
			Ready: slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			}),
		}
		if optOut != nil {
			fact.OptOut = optOut(pod.Labels, pod.Annotations)
		}
		for _, v := range pod.Spec.Volumes {
			if v.HostPath != nil {
				fact.HostPaths = append(fact.HostPaths, v.HostPath.Path)
			}
		}
		known[fact.UID] = fact
		known[string(pod.UID)] = fact
	}
	delete(known, "") // a pod without UID identifies nothing
	return known
}

func HasPod(pods map[string]PodFact, uid string) bool { _, ok := pods[uid]; return ok }

// CountPods returns how many pods there are; a static pod is known by two UIDs.
func CountPods(known ...map[string]PodFact) int {
	uids := make(map[string]bool)
	for _, pods := range known {
		for _, pod := range pods {
			uids[pod.UID] = true
		}
	}
	return len(uids)
}

// Failures lists the witnesses that did not answer.
func (t *Inventory) Failures() []object.Failure {
	var failures []object.Failure
	for _, witness := range []struct {
		name string
		err  error
	}{{object.Runtime, t.Runtime.Err}, {object.Containerd, t.Containerd.Err}, {object.Kubelet, t.Kubelet.Err},
		{object.Apiserver, t.Cluster.Err},
		{object.Apiserver, t.Cluster.NodeErr}} {
		if witness.err != nil {
			failures = append(failures, object.FailureOf(witness.name, witness.err))
		}
	}
	return failures
}
