package podstate

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/internal/host/cni"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// Dir returns kubelet's directory of a pod, in the form of the mount table: kubelet's root may be a link to another
// disk.
func Dir(h *host.Host, uid string) string {
	root, err := h.Files.Resolve(h.Paths.KubeletRoot)
	if err != nil {
		root = h.Paths.KubeletRoot
	}
	return path.Join("/", root, "pods", uid)
}

// Process is a process of a pod that has not exited.
type Process struct {
	PID   int
	Comm  string
	Wchan string // of a thread hanging in the kernel (state D): its function, or "?" if the kernel does not show it
}

// BlockedOf returns the processes that hang in the kernel.
func BlockedOf(processes []Process) []Process {
	return slices.DeleteFunc(slices.Clone(processes), func(p Process) bool { return p.Wchan == "" })
}

// Bounds for one pod.
const (
	maxProcesses = 200
	maxThreads   = 500
)

// CgroupsOf returns the cgroups of all pods, by UID, in the hierarchies that can freeze, or that contain the processes
// if there is only one. With an error it also returns the cgroups read so far.
func CgroupsOf(h *host.Host, mounts []mount.Mount) (map[string][]cgroup.PodCgroup, error) {
	cgroups := map[string][]cgroup.PodCgroup{}
	var problems []error
	read := 0
	for _, hierarchy := range cgroup.CgroupHierarchies(mounts, h.Paths.CgroupMount) {
		if !hierarchy.V2 && !hierarchy.Has("freezer") {
			continue
		}
		read++
		found, err := cgroup.PodCgroups(h, hierarchy)
		problems = append(problems, err)
		for _, c := range found {
			cgroups[c.UID] = append(cgroups[c.UID], c)
		}
	}
	if read == 0 {
		problems = append(problems, fmt.Errorf("no cgroup hierarchy below %s", h.Paths.CgroupMount))
	}
	return cgroups, errors.Join(problems...)
}

// ProcessesOf returns the processes in the cgroups of a pod, and the first frozen one of these cgroups.
func ProcessesOf(h *host.Host, cgroups []cgroup.PodCgroup) (frozen string, alive []Process) {
	frozen, pids := membersOf(h, cgroups)
	threads := 0
	for _, pid := range pids[:min(len(pids), maxProcesses)] {
		stat, err := h.ProcStat(pid)
		if err != nil || !proc.Alive(stat) {
			continue
		}
		p := Process{PID: pid, Comm: stat.Comm}
		tids, _ := h.TIDs(pid)
		for _, tid := range tids {
			if threads++; threads > maxThreads {
				break
			}
			if task, err := h.TaskStat(pid, tid); err == nil && task.State == 'D' {
				if p.Wchan, err = h.Files.Text(fmt.Sprintf("/proc/%d/task/%d/wchan", pid, tid)); err != nil ||
					p.Wchan == "" || p.Wchan == "0" {
					p.Wchan = "?"
				}
				break
			}
		}
		alive = append(alive, p)
	}
	return frozen, alive
}

// membersOf returns the first frozen one of some cgroups, and the processes in all of them.
func membersOf(h *host.Host, cgroups []cgroup.PodCgroup) (frozen string, pids []int) {
	seen := map[int]bool{}
	for _, c := range cgroups {
		if is, err := cgroup.Frozen(h, c); err == nil && is && frozen == "" {
			frozen = c.Path
		}
		data, err := h.Files.Read(path.Join(c.Dir(), "cgroup.procs"))
		if err != nil {
			continue // gone, or a threaded cgroup
		}
		for field := range strings.FieldsSeq(string(data)) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 0 && !seen[pid] {
				seen[pid] = true
				pids = append(pids, pid)
			}
		}
	}
	return frozen, pids
}

// MountsOf returns the mounts below the directory of a pod.
func MountsOf(h *host.Host, mounts []mount.Mount, uid string) []mount.Mount {
	dir := Dir(h, uid)
	var found []mount.Mount
	for _, m := range mounts {
		if mount.Below(m.Point, dir) {
			found = append(found, m)
		}
	}
	return found
}

// AttachmentsOf returns a pod's attachments in libcni's cache: an attachment stays there until its DEL has succeeded.
func AttachmentsOf(h *host.Host, uid string, sandboxes []*cri.PodSandbox) ([]cni.Attachment, error) {
	all, err := cni.Attachments(h)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // no plugin has used it
	}
	return slices.DeleteFunc(all, func(a cni.Attachment) bool {
		return a.Args["K8S_POD_UID"] != uid && !slices.ContainsFunc(sandboxes, func(s *cri.PodSandbox) bool {
			return s.GetMetadata().GetUid() == uid && s.Id == a.ContainerID
		})
	}), err
}

// SandboxesOf returns the ready sandbox of a pod, and the number of its other ones.
func SandboxesOf(sandboxes []*cri.PodSandbox, uid string) (ready *cri.PodSandbox, others int) {
	for _, s := range sandboxes {
		switch {
		case s.GetMetadata().GetUid() != uid:
		case s.State == cri.PodSandboxState_SANDBOX_READY:
			ready = s
		default:
			others++
		}
	}
	return ready, others
}

// RunningOf returns the running containers of a pod, according to the runtime.
func RunningOf(containers []*cri.Container, uid string) []string {
	var names []string
	for _, c := range containers {
		if c.State == cri.ContainerState_CONTAINER_RUNNING && c.Labels["io.kubernetes.pod.uid"] == uid {
			names = append(names, c.GetMetadata().GetName())
		}
	}
	return names
}

// IsCreated reports whether a sandbox has a container of that name in state created, not started.
func IsCreated(containers []*cri.Container, sandbox *cri.PodSandbox, name string) bool {
	return sandbox != nil && slices.ContainsFunc(containers, func(c *cri.Container) bool {
		return c.PodSandboxId == sandbox.Id && c.GetMetadata().GetName() == name &&
			c.State == cri.ContainerState_CONTAINER_CREATED
	})
}

// MissingVolumes names the volumes that a container mounts but that are not set up. Kubelet makes
// volumes/<plugin>/<volume> when it sets one up; claims have the name of their PersistentVolume, which the pod does not
// show, so they are counted. A hostPath leaves no trace.
func MissingVolumes(h *host.Host, mounts []mount.Mount, pod *corev1.Pod) ([]string, error) {
	there, err := setUp(h, mounts, host.NodePodUID(pod))
	if err != nil {
		return nil, err
	}
	var missing, claims []string
	for _, v := range MountedVolumes(pod) {
		switch plugin, what := VolumePlugin(v); {
		case plugin == "" && what != "":
			claims = append(claims, v.Name+" ("+what+")")
		case plugin == "":
		case !there[plugin+"/"+v.Name]:
			missing = append(missing, v.Name+" ("+what+")")
		default:
			delete(there, plugin+"/"+v.Name)
		}
	}
	if bound := len(there); bound < len(claims) {
		missing = append(missing, claims...)
		if bound > 0 {
			missing = append(missing, fmt.Sprintf("of which %d are set up", bound))
		}
	}
	return missing, nil
}

// setUp returns the volumes of a pod that are set up, as plugin/volume. CSI volumes must be mounted too, because
// kubelet makes their directory first.
func setUp(h *host.Host, mounts []mount.Mount, uid string) (map[string]bool, error) {
	dir := Dir(h, uid)
	there := map[string]bool{}
	for _, kind := range []string{"volumes", "volumeDevices"} {
		plugins, err := h.Files.List(path.Join(dir, kind))
		if err != nil {
			if kind == "volumes" {
				return nil, err
			}
			continue
		}
		for _, plugin := range plugins {
			volumes, err := h.Files.List(path.Join(dir, kind, plugin))
			if err != nil {
				return nil, err
			}
			for _, volume := range volumes {
				point := path.Join(dir, kind, plugin, volume)
				if kind != "volumes" || plugin != csiPlugin || slices.ContainsFunc(mounts, func(m mount.Mount) bool {
					return mount.Below(m.Point, point)
				}) {
					there[plugin+"/"+volume] = true
				}
			}
		}
	}
	return there, nil
}
