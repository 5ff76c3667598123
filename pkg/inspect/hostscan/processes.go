package hostscan

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	hostcgroup "github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/internal/host/holders"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// ProcessTable is one pass over /proc.
type ProcessTable struct {
	Pods    []PodProcess     // those in a pod's cgroup
	Nested  []PodProcess     // those in another kubelet's kubepods tree
	Hidden  []PodProcess     // those that could not be read
	Count   map[string]int   // processes by UID
	Members map[string][]int // processes by cgroup, at most MaxPodProcesses of each: MemberKey
	PIDs    []int            // all
}

// MaxPodProcesses limits the listed processes of one pod. A pod with more affects only itself: see listProcesses.
const MaxPodProcesses = 4096

// PodProcess is a process in a cgroup of a pod.
type PodProcess struct {
	proc.Stat
	UID, Container, Cgroup string
	Driver                 string // of the tree that it is in
	Conflict               string // set when hierarchies name different pods or drivers
	Unread                 string // why it could not be read
}

// MemberKey names one cgroup of one hierarchy, both as in /proc/PID/cgroup.
func MemberKey(hierarchy, cgroup string) string { return hierarchy + ":" + cgroup }

// readProcesses makes one pass over /proc. A process belongs to the pod of any of its cgroups: interrupted clean-ups
// leave processes in some hierarchies only. In cgroup v1 a zombie without threads is in no cgroup and is not listed. A
// process that cannot be read affects only itself: some kernels report no cgroups at all if the path is longer than PATH_MAX.
func readProcesses(ctx context.Context, h *host.Host) (ProcessTable, error) {
	pids, err := h.PIDs()
	if err != nil {
		return ProcessTable{}, err
	}
	table := ProcessTable{PIDs: pids, Count: make(map[string]int), Members: make(map[string][]int)}
	pods := podLookup{paths: h.Paths, known: make(map[string]cgroupPod)}
	for _, pid := range pids {
		if err := ctx.Err(); err != nil {
			return ProcessTable{}, fmt.Errorf("processes: %w", err)
		}
		cgroups, err := h.ProcCgroups(pid)
		if proc.Gone(err) {
			continue
		}
		if err != nil {
			table.hide(h, pid, PodProcess{}, err)
			continue
		}
		p, ours, nested := pods.ofProcess(cgroups)
		if !ours && !nested {
			continue
		}
		if p.Stat, err = h.ProcStat(pid); proc.Gone(err) {
			continue
		} else if err != nil {
			table.hide(h, pid, p, err)
			continue
		}
		if !ours {
			table.Nested = append(table.Nested, p)
			continue
		}
		if table.Count[p.UID]++; table.Count[p.UID] <= MaxPodProcesses {
			table.Pods = append(table.Pods, p)
		}
		for hierarchy, cgroup := range cgroups {
			if key := MemberKey(hierarchy, cgroup); len(table.Members[key]) < MaxPodProcesses {
				table.Members[key] = append(table.Members[key], pid)
			}
		}
	}
	return table, nil
}

// hide records a process that could not be read.
func (t *ProcessTable) hide(h *host.Host, pid int, p PodProcess, err error) {
	if stat, statErr := h.ProcStat(pid); statErr == nil {
		p.Stat = stat
	}
	p.PID, p.Unread = pid, err.Error()
	t.Hidden = append(t.Hidden, p)
}

// cgroupPod holds the facts shown by the path of a cgroup.
type cgroupPod struct {
	host.CgroupPlace
	ours, nested bool
}

// podLookup caches the results of paths: the same few occur in every hierarchy and for many processes.
type podLookup struct {
	paths host.Paths
	known map[string]cgroupPod
}

func (l *podLookup) of(cgroup string) cgroupPod {
	found, ok := l.known[cgroup]
	if !ok {
		found.CgroupPlace, found.ours = l.paths.PlaceOfCgroup(cgroup)
		found.nested = !found.ours && strings.Contains(cgroup, "kubepods") &&
			!slices.ContainsFunc(hostcgroup.KubepodsCgroups(l.paths), func(own string) bool {
				return mount.Below(cgroup, own)
			})
		l.known[cgroup] = found
	}
	return found
}

// ofProcess returns the pod of one of the cgroups of a process; nested is true if one is in a kubepods tree of another
// kubelet.
func (l *podLookup) ofProcess(cgroups map[string]string) (p PodProcess, ours, nested bool) {
	for _, cgroup := range cgroups {
		switch pod := l.of(cgroup); {
		case pod.nested:
			nested = true
			if !ours {
				p.Cgroup = max(p.Cgroup, cgroup)
			}
		case !pod.ours:
		case ours && pod.UID != p.UID:
			p.Conflict = fmt.Sprintf("in cgroups of two pods, %s and %s", min(p.UID, pod.UID), max(p.UID, pod.UID))
		case ours && pod.Driver != p.Driver:
			p.Conflict = "in cgroups of two cgroup drivers"
		default:
			if !ours {
				p.Cgroup = ""
			}
			ours, p.UID, p.Driver = true, pod.UID, pod.Driver
			// independent of the order of the map
			p.Container, p.Cgroup = max(p.Container, pod.ContainerID), max(p.Cgroup, cgroup)
		}
	}
	if ours && nested {
		p.Conflict = cmp.Or(p.Conflict, "also in a kubepods tree that is not our kubelet's")
	}
	return p, ours, nested
}

// OwnPod returns the UID of the agent's pod, or "" if it runs outside Kubernetes.
func (s *Scan) OwnPod() string {
	cgroups, err := s.Host.OwnCgroups()
	if err != nil {
		return ""
	}
	pods := podLookup{paths: s.Host.Paths, known: make(map[string]cgroupPod)}
	p, _, _ := pods.ofProcess(cgroups)
	return p.UID
}

// PodsBelow returns the pods in whose cgroups the children of a process are, by its PID; no UID if they are in several.
func (s *Scan) PodsBelow() (map[int]string, error) {
	table, err := s.Processes()
	if err != nil {
		return nil, err
	}
	pods := make(map[int]string)
	for _, p := range table.Pods {
		if other, ok := pods[p.PPID]; ok && other != p.UID {
			p.UID = ""
		}
		pods[p.PPID] = p.UID
	}
	return pods, nil
}

// maxPodFiles bounds how many open files of one pod Served looks at.
const maxPodFiles = 1 << 16

// Served returns the user that a process of a pod may serve, and would take with it: the node, if kubelet or the
// runtime was started in that pod; another pod, as the shim of its containers; or a FUSE filesystem mounted outside the
// pod's directory, or a device, served from user space. Empty: none.
func (s *Scan) Served(uid string) string {
	table, err := s.Processes()
	comms := make(map[int]string)
	for _, p := range table.Pods {
		if p.UID == uid {
			comms[p.PID] = p.Comm
		}
	}
	if len(comms) == 0 && err == nil {
		return ""
	}
	for _, daemon := range []func() (host.Process, error){s.Kubelet, s.Runtime} {
		found, err := daemon()
		if comm, ok := comms[found.PID]; ok && err == nil { // without the daemon, there is no proof anyway
			return fmt.Sprintf("its process %d (%s) is kubelet or the runtime", found.PID, comm)
		}
	}
	for _, p := range table.Pods {
		if comm, ok := comms[p.PPID]; ok && p.UID != uid {
			return fmt.Sprintf("its process %d (%s) is the parent of process %d of pod %s", p.PPID, comm, p.PID, p.UID)
		}
	}
	mounts, mountsErr := s.Mounts()
	err = cmp.Or(err, mountsErr)
	others := slices.DeleteFunc(slices.Clone(mounts), func(m mount.Mount) bool {
		return mount.Below(m.Point, path.Join(s.Host.Paths.KubeletRoot, "pods", uid))
	})
	left := maxPodFiles
	for _, p := range table.Pods {
		if p.UID != uid || err != nil {
			continue
		}
		var what string
		if what, err = holders.Serves(s.Host, p.PID, others, &left); err == nil && what != "" {
			return fmt.Sprintf("its process %d (%s) may serve %s", p.PID, p.Comm, what)
		}
	}
	if err != nil {
		return fmt.Sprintf("whether its processes serve others is not known: %v", err)
	}
	return ""
}
