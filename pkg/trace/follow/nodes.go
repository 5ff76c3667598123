package follow

import (
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/pkg/trace/nodefault"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
)

const (
	// maxBuilds limits the combinations of software to tell apart: pools, and versions of the parts of record.Build.
	maxBuilds   = 1000
	maxPlugins  = 16 // DaemonSets of a node that set up networks and volumes
	maxVersion  = 200
	schedulers  = "kube-scheduler"
	apiservers  = "kube-apiserver"
	networksDir = "/cni/net.d"        // of CNI's configuration
	pluginsDir  = "/plugins_registry" // of kubelet, in which CSI drivers register
)

// node is the recorded state of a Node.
type node struct {
	ready      time.Time // since when; zero: not ready
	tainted    bool      // it has a taint of a fault, or is cordoned
	faulty     bool      // it is not ready, or has a taint of a fault; a person who cordons it has a reason of their own
	cpu, bytes int64     // allocatable
	pods       int64     // allocatable
	build      int64     // ID of its software; 0: unknown, or there are too many
}

// Node takes a Node.
func (f *Follower) Node(n *corev1.Node, gone bool, now time.Time) {
	defer f.arrives(now)()
	if gone {
		delete(f.nodes, n.Name)
		delete(f.plugins, n.Name)
		delete(f.skews, "node/"+n.Name)
		return
	}
	has := n.Status.Allocatable
	kept := node{cpu: has.Cpu().MilliValue(), bytes: has.Memory().Value(), pods: has.Pods().Value()}
	for i := range n.Status.Conditions {
		c := &n.Status.Conditions[i]
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			kept.ready = c.LastTransitionTime.Time
		}
	}
	kept.faulty = kept.ready.IsZero()
	for _, t := range n.Spec.Taints {
		isFault := strings.HasPrefix(t.Key, "node.kubernetes.io/") || strings.Contains(t.Key, "nodeagent")
		kept.tainted = kept.tainted || isFault
		kept.faulty = kept.faulty || isFault && t.Key != corev1.TaintNodeUnschedulable
	}
	if info := &n.Status.NodeInfo; info.KubeletVersion != "" {
		kept.build = f.buildID(record.Build{Pool: f.share(strings.Clone(n.Labels[f.config.PoolLabel])),
			Kubelet: f.share(strings.Clone(info.KubeletVersion)), Runtime: f.share(strings.Clone(info.ContainerRuntimeVersion)),
			System: f.share(info.OSImage + ", " + info.KernelVersion)})
	}
	f.nodes[f.share(strings.Clone(n.Name))] = kept
}

// Builds returns the software of the Nodes that were seen, by ID.
func (f *Follower) Builds() map[int64]record.Build {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.builds)
}

// Lease takes a component's Lease. Leaders renew theirs every 2 s, which proves that the watch is current.
func (f *Follower) Lease(name string, listed bool, now time.Time) {
	defer f.arrives(now)()
	f.leases[strings.Clone(name)] = now
	if (name == "kube-scheduler" || name == "kube-controller-manager") && !listed {
		f.beat = fastBeat
	}
}

// Nodes returns the number of Nodes, and of those not ready or with the taint of a fault.
func (f *Follower) Nodes() (all, faulty int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.nodes {
		if n.faulty {
			faulty++
		}
	}
	return len(f.nodes), faulty
}

// NodeList returns the Nodes with their pools and states, without their acts.
func (f *Follower) NodeList() map[string]nodefault.Score {
	f.mu.Lock()
	defer f.mu.Unlock()
	used := map[string]node{}
	for _, p := range f.pods {
		if n := used[p.node]; !p.terminal {
			used[p.node] = node{cpu: n.cpu + int64(p.cpu), bytes: n.bytes + int64(p.mib)<<20, pods: n.pods + 1}
		}
	}
	share := func(used, of int64) float64 {
		if of <= 0 { // not known
			return 0
		}
		return float64(used) / float64(of)
	}
	nodes := make(map[string]nodefault.Score, len(f.nodes))
	for name, n := range f.nodes {
		u := used[name]
		day := nodefault.Score{Node: name, Pool: f.builds[n.build].Pool, Faulty: n.faulty, Pods: int(u.pods)}
		if n.pods > 0 { // its status is known
			day.Load = max(share(u.cpu, n.cpu), share(u.bytes, n.bytes), share(u.pods, n.pods))
		}
		nodes[name] = day
	}
	return nodes
}

// Renewed reports whether a leader renews its Lease. known is false if the cluster never showed the Lease, or the watch
// is behind.
func (f *Follower) Renewed(lease string, now time.Time) (renewed, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	last, shown := f.leases[lease]
	seen := f.seen(now)
	return seen.Sub(last) <= leaseStale, shown && f.synced && now.Sub(seen) <= f.beat
}

// plugin is a DaemonSet whose pods set up the networks or the volumes of the pods of a node.
type plugin struct {
	owner, images    string
	network, storage bool
}

// controlPlane is a static pod of the control plane.
type controlPlane struct{ component, node string }

// software takes the images of a pod of the cluster's own software: of a DaemonSet that mounts the directory of CNI's
// configuration or of kubelet's plugins, or a static pod of the control plane.
func (f *Follower) software(p *corev1.Pod, change Change) {
	component, ref := p.Labels["component"], metav1.GetControllerOfNoCopy(p)
	switch node := p.Spec.NodeName; {
	case node == "":
	case p.Namespace == metav1.NamespaceSystem && p.Annotations[corev1.MirrorPodAnnotationKey] != "" &&
		(component == schedulers || component == apiservers):
		key := controlPlane{f.share(strings.Clone(component)), f.share(strings.Clone(node))}
		if change == Gone {
			delete(f.control, key)
			return
		}
		f.control[key] = f.share(imagesOf(p))
	case ref != nil && ref.Kind == "DaemonSet" && change != Gone: // between two pods of a DaemonSet, the node keeps the version of the first
		set := plugin{owner: p.Namespace + "/" + ref.Name, network: mountsHost(p, networksDir), storage: mountsHost(p, pluginsDir)}
		if !set.network && !set.storage {
			return
		}
		set.owner, set.images = f.share(set.owner), f.share(imagesOf(p))
		others := slices.DeleteFunc(f.plugins[node], func(other plugin) bool { return other.owner == set.owner })
		if len(others) < maxPlugins {
			f.plugins[f.share(strings.Clone(node))] = append(others, set)
		}
	}
}

func mountsHost(p *corev1.Pod, dir string) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		return v.HostPath != nil && strings.HasSuffix(path.Clean(v.HostPath.Path), dir)
	})
}

// imagesOf returns the names of a pod's images without their registry: "node:v3.30.1, registrar:v2.13.0".
func imagesOf(p *corev1.Pod) string {
	var images []string
	for i := range p.Spec.Containers {
		images = append(images, path.Base(p.Spec.Containers[i].Image))
	}
	slices.Sort(images)
	text := strings.Join(slices.Compact(images), ", ")
	return strings.Clone(text[:min(len(text), maxVersion)])
}

// buildOf returns the ID of the software responsible for the pods of a node; 0 if the Node is unknown.
func (f *Follower) buildOf(node string) int64 {
	base := f.nodes[node].build
	b := f.builds[base]
	if base == 0 {
		return 0
	}
	join := func(of func(plugin) bool) string {
		var images []string
		for _, p := range f.plugins[node] {
			if of(p) {
				images = append(images, p.images)
			}
		}
		slices.Sort(images)
		return strings.Join(images, "; ")
	}
	b.Network, b.Storage = join(func(p plugin) bool { return p.network }), join(func(p plugin) bool { return p.storage })
	b.Scheduler, b.Apiserver = f.controlVersion(schedulers), f.controlVersion(apiservers)
	return f.buildID(b)
}

// controlVersion returns the image of all replicas of a component; empty while they differ, or if none is a static pod.
func (f *Follower) controlVersion(component string) (image string) {
	for replica, its := range f.control {
		switch {
		case replica.component != component:
		case image != "" && image != its:
			return ""
		default:
			image = its
		}
	}
	return image
}

// buildID returns the ID of a build; 0 if there are too many.
func (f *Follower) buildID(b record.Build) int64 {
	id := b.ID()
	if _, known := f.builds[id]; !known {
		if len(f.builds) >= maxBuilds {
			return 0
		}
		f.builds[id] = b
	}
	return id
}
