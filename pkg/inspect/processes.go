package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	hostcgroup "github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// processTable is one pass over /proc.
type processTable struct {
	pods    []podProcess     // those in a pod's cgroup
	nested  []podProcess     // those in a kubepods tree that is not our kubelet's
	hidden  []podProcess     // those that could not be read
	count   map[string]int   // processes by UID
	members map[string][]int // processes by cgroup, at most maxPodProcesses of each: memberKey
	pids    []int            // all
}

// maxPodProcesses is how many processes of one pod are listed. A pod with more affects only itself: see listProcesses.
const maxPodProcesses = 4096

// podProcess is a process in a cgroup of a pod.
type podProcess struct {
	proc.Stat
	uid, container, cgroup string
	driver                 string // of the tree that it is in
	conflict               string // set when hierarchies name different pods or drivers
	unread                 string // why it could not be read
}

// memberKey names one cgroup of one hierarchy, both as in /proc/PID/cgroup.
func memberKey(hierarchy, cgroup string) string { return hierarchy + ":" + cgroup }

// readProcesses makes one pass over /proc. A process belongs to the pod of any of its cgroups: interrupted clean-ups
// leave processes in some hierarchies only. In cgroup v1 a zombie is in no cgroup and is not listed. A process that
// cannot be read affects only itself: some kernels report no cgroups at all if the path is longer than PATH_MAX.
func readProcesses(ctx context.Context, h *host.Host) (processTable, error) {
	pids, err := h.PIDs()
	if err != nil {
		return processTable{}, err
	}
	table := processTable{pids: pids, count: make(map[string]int), members: make(map[string][]int)}
	pods := podLookup{paths: h.Paths, known: make(map[string]cgroupPod)}
	for _, pid := range pids {
		if err := ctx.Err(); err != nil {
			return processTable{}, fmt.Errorf("processes: %w", err)
		}
		cgroups, err := h.ProcCgroups(pid)
		if proc.Gone(err) {
			continue
		}
		if err != nil {
			table.hide(h, pid, podProcess{}, err)
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
			table.nested = append(table.nested, p)
			continue
		}
		if table.count[p.uid]++; table.count[p.uid] <= maxPodProcesses {
			table.pods = append(table.pods, p)
		}
		for hierarchy, cgroup := range cgroups {
			if key := memberKey(hierarchy, cgroup); len(table.members[key]) < maxPodProcesses {
				table.members[key] = append(table.members[key], pid)
			}
		}
	}
	return table, nil
}

// hide records a process that could not be read.
func (t *processTable) hide(h *host.Host, pid int, p podProcess, err error) {
	if stat, statErr := h.ProcStat(pid); statErr == nil {
		p.Stat = stat
	}
	p.PID, p.unread = pid, err.Error()
	t.hidden = append(t.hidden, p)
}

// cgroupPod is what the path of a cgroup shows.
type cgroupPod struct {
	host.CgroupPlace
	ours, nested bool
}

// podLookup caches what paths show: the same few occur in every hierarchy and for many processes.
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

// ofProcess returns the pod that one of the cgroups of a process belongs to; nested is true where one is in a kubepods
// tree of another kubelet.
func (l *podLookup) ofProcess(cgroups map[string]string) (p podProcess, ours, nested bool) {
	for _, cgroup := range cgroups {
		switch pod := l.of(cgroup); {
		case pod.nested:
			nested = true
			if !ours {
				p.cgroup = max(p.cgroup, cgroup)
			}
		case !pod.ours:
		case ours && pod.UID != p.uid:
			p.conflict = fmt.Sprintf("in cgroups of two pods, %s and %s", min(p.uid, pod.UID), max(p.uid, pod.UID))
		case ours && pod.Driver != p.driver:
			p.conflict = "in cgroups of two cgroup drivers"
		default:
			if !ours {
				p.cgroup = ""
			}
			ours, p.uid, p.driver = true, pod.UID, pod.Driver
			// independent of the order of the map
			p.container, p.cgroup = max(p.container, pod.ContainerID), max(p.cgroup, cgroup)
		}
	}
	if ours && nested {
		p.conflict = cmp.Or(p.conflict, "also in a kubepods tree that is not our kubelet's")
	}
	return p, ours, nested
}

func processSpec() KindSpec {
	return KindSpec{
		Kind: Process, List: listProcesses,
		What: "a process in a pod's cgroup",
		Harm: "it holds memory, volumes and devices; one in state D cannot be ended until what it waits for answers",
	}
}

// listProcesses lists the processes in cgroups of pods.
func listProcesses(_ context.Context, scan *Scan) ([]Object, error) {
	table, err := scan.processes()
	if err != nil {
		return nil, err
	}
	objects := make([]Object, 0, len(table.pods)+len(table.nested))
	crowded := make(map[string]bool)
	for _, p := range table.pods {
		o := processObject(p)
		o.Foreign = p.conflict
		if table.count[p.uid] > maxPodProcesses {
			if crowded[p.uid] {
				continue // one object stands for all of them
			}
			crowded[p.uid] = true
			o.Doubt = fmt.Sprintf("pod %s has more than %d processes", p.uid, maxPodProcesses)
		}
		objects = append(objects, o)
	}
	for _, p := range table.nested {
		o := processObject(p)
		o.Foreign = "in a kubepods tree that is not our kubelet's"
		objects = append(objects, o)
	}
	for _, p := range table.hidden {
		o := processObject(p)
		o.Doubt = "it could not be read: " + p.unread
		objects = append(objects, o)
	}
	return objects, nil
}

func processObject(p podProcess) Object {
	return Object{
		Kind:        Process,
		ID:          strconv.Itoa(p.PID),
		Pod:         Pod{UID: p.uid},
		ContainerID: p.container,
		Identity:    Identity{"pid": strconv.Itoa(p.PID), "startTime": strconv.FormatUint(p.StartTime, 10)},
		Facts: facts("command", strings.ToValidUTF8(p.Comm, "�"), "state", string(p.State),
			"parent", strconv.Itoa(p.PPID), "cgroup", p.cgroup, "driver", p.driver),
	}
}

// explainProcess adds what is only read of suspects: what a task in D state waits for.
func explainProcess(h *host.Host, o *Object) {
	if o.Facts["state"] != "D" {
		return
	}
	if channel, err := h.Files.Text("/proc/" + o.ID + "/wchan"); err == nil && channel != "0" {
		o.Facts["waitsIn"] = channel
	}
}
