package kinds

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/proc"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

func processSpec() Spec {
	return Spec{
		Kind: object.Process, List: listProcesses,
		What: "a process in a pod's cgroup",
		Harm: "it holds memory, volumes and devices; one in state D cannot be ended until the device or server that it waits for answers",
	}
}

// listProcesses lists the processes in cgroups of pods.
func listProcesses(_ context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	table, err := scan.Processes()
	if err != nil {
		return nil, err
	}
	objects := make([]object.Object, 0, len(table.Pods)+len(table.Nested))
	crowded := make(map[string]bool)
	for _, p := range table.Pods {
		o := processObject(p)
		o.Foreign = p.Conflict
		if table.Count[p.UID] > hostscan.MaxPodProcesses {
			if crowded[p.UID] {
				continue // one object stands for all of them
			}
			crowded[p.UID] = true
			o.Doubt = fmt.Sprintf("pod %s has more than %d processes", p.UID, hostscan.MaxPodProcesses)
		}
		objects = append(objects, o)
	}
	unknown := treeInDoubt(scan)
	for _, p := range table.Nested {
		o := processObject(p)
		if o.Doubt = unknown; unknown == "" {
			o.Foreign = "in a kubepods tree that is not our kubelet's"
		}
		objects = append(objects, o)
	}
	for _, p := range table.Hidden {
		o := processObject(p)
		o.Doubt = "it could not be read: " + p.Unread
		objects = append(objects, o)
	}
	return objects, nil
}

// treeInDoubt returns why our kubelet's kubepods tree is unknown: a kubelet that does not run shows no cgroupRoot, and
// no other source names one. Empty: it is known.
func treeInDoubt(scan *hostscan.Scan) string {
	if scan.Kubelet == nil || scan.Host.Paths.CgroupRoot != "/" {
		return ""
	}
	if _, err := scan.Kubelet(); err != nil {
		return fmt.Sprintf("in a kubepods tree, and which one is our kubelet's is not known (paths.cgroupRoot is not set): %v", err)
	}
	return ""
}

func processObject(p hostscan.PodProcess) object.Object {
	threads := "" // that have outlived the main thread
	if p.State == 'Z' && proc.Alive(p.Stat) {
		threads = strconv.Itoa(p.Threads - 1)
	}
	return object.Object{
		Kind:        object.Process,
		ID:          strconv.Itoa(p.PID),
		Pod:         object.Pod{UID: p.UID},
		ContainerID: p.Container,
		Identity:    object.Identity{Process: object.ProcessID{PID: p.PID, StartTime: p.StartTime}},
		Facts: object.Facts("command", strings.ToValidUTF8(p.Comm, "�"), "state", string(p.State),
			"parent", strconv.Itoa(p.PPID), "cgroup", p.Cgroup, "driver", p.Driver,
			"threads", threads),
	}
}

// explainProcess adds a fact read for suspects only: the wait channel of a task in D state.
func explainProcess(h *host.Host, o *object.Object) {
	if o.Facts["state"] != "D" {
		return
	}
	if channel, err := h.Files.Text("/proc/" + o.ID + "/wchan"); err == nil && channel != "0" {
		o.Facts["waitsIn"] = channel
	}
}

// processGone reports whether a listed process no longer exists; false if that cannot be read.
func processGone(o *object.Object, h *host.Host) bool {
	stat, err := h.ProcStat(o.Identity.Process.PID)
	return proc.Gone(err) || err == nil && stat.StartTime != o.Identity.Process.StartTime
}
