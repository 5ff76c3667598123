package follow

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/pkg/trace/record"
)

const (
	maxPlugins  = 16 // DaemonSets of a node that set up networks and volumes
	maxVersion  = 200
	mirrorOf    = "kubernetes.io/config.mirror"
	daemonSet   = "DaemonSet"
	schedulers  = "kube-scheduler"
	apiservers  = "kube-apiserver"
	kubeSystem  = "kube-system"
	networksDir = "/cni/net.d"        // of CNI's configuration
	pluginsDir  = "/plugins_registry" // of kubelet, in which CSI drivers register
)

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
	owner := ""
	if len(p.OwnerReferences) > 0 && p.OwnerReferences[0].Kind == daemonSet {
		owner = p.OwnerReferences[0].Name
	}
	component := p.Labels["component"]
	switch node := p.Spec.NodeName; {
	case node == "" || p.Namespace == "":
	case p.Namespace == kubeSystem && p.Annotations[mirrorOf] != "" && (component == schedulers || component == apiservers):
		key := controlPlane{f.share(strings.Clone(component)), f.share(strings.Clone(node))}
		if change == Gone {
			delete(f.control, key)
			return
		}
		f.control[key] = f.share(imagesOf(p))
	case owner != "" && change != Gone: // between two pods of a DaemonSet, the node keeps the version of the first
		set := plugin{owner: p.Namespace + "/" + owner, network: mountsHost(p, networksDir), storage: mountsHost(p, pluginsDir)}
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
