package host

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host/naming"
	"github.com/nodeagent/nodeagent/internal/setting"
)

// mirrorAnnotation is on the API object of a static pod (its mirror); its value is the UID that kubelet uses on the
// node. https://kubernetes.io/docs/reference/labels-annotations-taints/#kubernetes-io-config-mirror
const mirrorAnnotation = "kubernetes.io/config.mirror"

// NodePodUID returns the UID of a pod on the node, used in directories, cgroups, sandboxes and CNI.
func NodePodUID(pod *corev1.Pod) string {
	if uid := pod.Annotations[mirrorAnnotation]; uid != "" {
		return uid
	}
	return string(pod.UID)
}

// IsPodUID reports whether s has a form that kubelet gives to pod UIDs: see naming.IsPodUID.
func IsPodUID(s string) bool { return naming.IsPodUID(s) }

// IsContainerID reports whether s has the form of a container or sandbox ID: see naming.IsContainerID.
func IsContainerID(s string) bool { return naming.IsContainerID(s) }

// PodOfPath returns the UID of the pod if name is its kubelet directory, <KubeletRoot>/pods/<uid>, or lies below it.
func (p Paths) PodOfPath(name string) (uid string, ok bool) {
	rest, ok := strings.CutPrefix(path.Clean(name), path.Join("/", p.KubeletRoot, "pods")+"/")
	if !ok {
		return "", false
	}
	uid, _, _ = strings.Cut(rest, "/")
	return uid, IsPodUID(uid)
}

// PodOfCgroup returns the pod, and the container if there is one, of a cgroup path as in /proc/PID/cgroup. Only pods
// directly in the kubepods tree of our own kubelet count: a kubepods tree nested below some container belongs to
// another kubelet, and everything in it to the pod of that container. It recognizes both drivers, and the containerd
// and CRI-O forms of container names:
//
//	cgroupfs  /kubepods/burstable/pod<uid>/<container>
//	systemd   /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid, _ for ->.slice/cri-containerd-<container>.scope
func (p Paths) PodOfCgroup(name string) (uid, containerID string, ok bool) {
	place, ok := p.PlaceOfCgroup(name)
	return place.UID, place.ContainerID, ok
}

// CgroupPlace is the information about a pod in the path of its cgroup.
type CgroupPlace struct {
	UID         string
	ContainerID string // empty if the path has none
	Driver      string // CgroupfsDriver or SystemdDriver, by its tree
	Unit        string // its systemd unit; empty if it has none: see unitBelow
}

// PlaceOfCgroup is PodOfCgroup with all information in the path.
func (p Paths) PlaceOfCgroup(name string) (CgroupPlace, bool) {
	if !strings.Contains(name, "kubepods") {
		return CgroupPlace{}, false // fast path for most processes
	}
	name, deleted := strings.CutSuffix(name, " (deleted)") // the kernel's suffix for a process that outlived its cgroup
	if !strings.HasPrefix(name, "/") || path.Clean(name) != name {
		return CgroupPlace{}, false
	}
	for _, root := range p.PodCgroupRoots() {
		rest, below := strings.CutPrefix(name, root.Dir+"/")
		if !below {
			continue
		}
		leaf, deeper, _ := strings.Cut(rest, "/")
		uid, ok := root.PodUID(leaf)
		if !ok {
			continue
		}
		container, _, _ := strings.Cut(deeper, "/")
		place := CgroupPlace{UID: uid, ContainerID: ContainerOfCgroup(container), Driver: root.Driver}
		if root.Driver == SystemdDriver && !deleted {
			place.Unit = unitBelow(leaf, deeper)
		}
		return place, true
	}
	return CgroupPlace{}, false
}

// unitBelow returns the systemd unit of a cgroup, given the pod's slice and the path below it: the slice itself, or a
// scope that the runtime made directly below it. Containers make all other cgroups there and choose their names: none
// of them is a unit, even if the host has one of that name. The scope's name is rebuilt from the container's ID, and
// counts only if it is the same.
func unitBelow(slice, below string) string {
	if below == "" {
		return slice // podUID has checked every byte
	}
	id := ContainerOfCgroup(below)
	for _, runtime := range []string{"cri-containerd-", "crio-", "crio-conmon-"} {
		if id != "" && below == runtime+id+".scope" {
			return below
		}
	}
	return ""
}

// The cgroup drivers, by kubelet's names (cgroupDriver in its configuration). Each has its own tree.
const (
	CgroupfsDriver = "cgroupfs"
	SystemdDriver  = "systemd"
)

// Validate reports a misspelt driver, which would make both trees ours.
func (p Paths) Validate() error {
	wrong := setting.Mistakes{}
	wrong.Check("cgroupDriver", slices.Contains([]string{"", CgroupfsDriver, SystemdDriver}, p.CgroupDriver),
		"%q: want %s or %s", p.CgroupDriver, SystemdDriver, CgroupfsDriver)
	return wrong.OrNil()
}

// podCgroupRoot is a cgroup whose direct children are pods.
type podCgroupRoot struct {
	Dir    string // path in the hierarchy
	prefix string // of the name of a pod's cgroup
	suffix string
	Driver string
}

// PodUID returns the UID in the name of a pod's cgroup.
func (r podCgroupRoot) PodUID(name string) (string, bool) {
	uid, ok := strings.CutPrefix(name, r.prefix)
	if !ok {
		return "", false
	}
	if uid, ok = strings.CutSuffix(uid, r.suffix); !ok {
		return "", false
	}
	if r.Driver == SystemdDriver { // "-" separates slices in systemd, so kubelet writes "_"
		if strings.Contains(uid, "-") {
			return "", false // another slice, far below its apparent parent
		}
		uid = strings.ReplaceAll(uid, "_", "-")
	}
	return uid, IsPodUID(uid)
}

// PodCgroupRoots returns the cgroups that contain this kubelet's pods: one for each QoS class, of the driver in p or,
// if it has none, of each. Guaranteed pods have no class of their own and are next to the classes.
func (p Paths) PodCgroupRoots() []podCgroupRoot {
	base := naming.SplitPath(p.CgroupRoot)
	var roots []podCgroupRoot
	for _, class := range [][]string{{"kubepods"}, {"kubepods", "burstable"}, {"kubepods", "besteffort"}} {
		names := slices.Concat(base, class)
		if p.CgroupDriver != SystemdDriver {
			roots = append(roots, podCgroupRoot{Dir: "/" + strings.Join(names, "/"), prefix: "pod",
				Driver: CgroupfsDriver})
		}
		if p.CgroupDriver != CgroupfsDriver {
			dir, slice := systemdSlice(names)
			roots = append(roots, podCgroupRoot{Dir: dir, prefix: slice + "-pod", suffix: ".slice",
				Driver: SystemdDriver})
		}
	}
	return roots
}

// systemdSlice returns the path that kubelet's systemd driver uses for the cgroup with the given names, and its slice
// without the suffix: lab, kubepods becomes /lab.slice/lab-kubepods.slice and lab-kubepods. See CgroupName.ToSystemd in
// pkg/kubelet/cm/cgroup_manager_linux.go.
func systemdSlice(names []string) (dir, slice string) {
	for i, name := range names {
		name = strings.ReplaceAll(name, "-", "_")
		if i > 0 {
			slice += "-"
		}
		slice += name
		dir += "/" + slice + ".slice"
	}
	return dir, slice
}

// ContainerOfCgroup returns the container ID in the name of a container's cgroup: the ID itself, or
// <runtime>-<ID>.scope. It is empty if the name has none.
func ContainerOfCgroup(name string) string {
	scope, isScope := strings.CutSuffix(name, ".scope")
	if isScope || strings.HasPrefix(name, "crio-") { // also CRI-O's names without systemd
		name = scope[strings.LastIndexByte(scope, '-')+1:]
	}
	if !IsContainerID(name) {
		return ""
	}
	return name
}

// IsCRIO reports whether the runtime is CRI-O.
func (p Paths) IsCRIO() bool { return path.Base(p.CRISocket) == "crio.sock" }

// IsRuntimeNetns reports whether the runtime gives such a name to the mount of a network namespace: cni-<UUID>, and for
// CRI-O also <UUID>.
func (p Paths) IsRuntimeNetns(name string) bool {
	uuid, prefixed := strings.CutPrefix(name, "cni-")
	return (prefixed || p.IsCRIO()) && len(uuid) == 36 && IsPodUID(uuid)
}
