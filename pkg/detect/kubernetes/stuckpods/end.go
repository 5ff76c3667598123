package stuckpods

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/kubernetes/podstate"
)

// endStage returns what a pod that does not end waits for.
func (e *podEvidence) endStage(ctx context.Context, p podstate.Pod) podstate.PodStage {
	uid := p.NodeUID()
	if stage := e.processStage(uid); stage.Stage != "" {
		return stage
	}
	if err := e.ask(ctx); err != nil {
		return podstate.PodStage{Stage: "unknown", Text: "none of its processes run, and the container runtime does " +
			"not answer: " + checkkit.Sanitize(err.Error(), checkkit.MaxReported)}
	}
	ready, _ := e.sandboxesOf(uid)
	for _, c := range e.containers {
		if c.State == cri.ContainerState_CONTAINER_RUNNING && c.Labels["io.kubernetes.pod.uid"] == uid {
			return podstate.PodStage{Stage: "container",
				Text: fmt.Sprintf("none of its processes run, but the runtime reports container %s as running: its "+
					"shim or the runtime hangs", checkkit.Sanitize(c.GetMetadata().GetName(), 63))}
		}
	}
	if ready != nil {
		return podstate.PodStage{Stage: "sandbox", Text: "its containers have exited, but its sandbox remains: the " +
			"runtime or its network plugin (CNI DEL) fails; see `journalctl -u containerd`"}
	}
	if points := e.mountsOf(uid); len(points) > 0 {
		return podstate.PodStage{Stage: "volumes",
			Text: fmt.Sprintf("its containers have exited, but %d volumes are still mounted: %s", len(points),
				checkkit.JoinFirst(points, 3))}
	}
	if finalizers := p.Pod.Finalizers; len(finalizers) > 0 {
		return podstate.PodStage{Stage: "finalizers", Own: true, Text: "nothing of it is left on the node; its " +
			"finalizers keep the object: " + checkkit.Sanitize(checkkit.JoinFirst(finalizers, 5), checkkit.MaxReported)}
	}
	return podstate.PodStage{Stage: "release", Text: "nothing of it is left on the node, but kubelet has not let the " +
		"apiserver delete it: check `journalctl -u kubelet`, and whether kubelet reaches the apiserver"}
}

// mountsOf returns what is mounted below the directory of a pod, as volume names where they show.
func (e *podEvidence) mountsOf(uid string) []string {
	dir := path.Join("/", e.host.Paths.KubeletRoot, "pods", uid)
	var points []string
	for _, m := range e.mounts {
		if mount.Below(m.Point, dir) {
			points = append(points, checkkit.Sanitize(strings.TrimPrefix(m.Point, dir+"/"), 200)+" ("+
				checkkit.Sanitize(m.FSType, 40)+")")
		}
	}
	slices.Sort(points)
	return slices.Compact(points)
}

// Bounds of what is read of one pod that does not end.
const (
	maxPodProcesses = 200
	maxPodThreads   = 500
)

// processStage returns why the processes of a pod do not exit, if any run.
func (e *podEvidence) processStage(uid string) podstate.PodStage {
	frozen, pids := e.cgroupsOf(uid)
	var alive, blocked []string
	threads := 0
	for _, pid := range pids[:min(len(pids), maxPodProcesses)] {
		stat, err := e.host.ProcStat(pid)
		if err != nil || stat.State == 'Z' || stat.State == 'X' {
			continue
		}
		name := fmt.Sprintf("%s (%d)", checkkit.Sanitize(stat.Comm, 15), pid)
		alive = append(alive, name)
		tids, _ := e.host.TIDs(pid)
		for _, tid := range tids {
			if threads++; threads > maxPodThreads {
				break
			}
			if task, err := e.host.TaskStat(pid, tid); err == nil && task.State == 'D' {
				wchan, _ := e.host.Files.Text(fmt.Sprintf("/proc/%d/task/%d/wchan", pid, tid))
				blocked = append(blocked, name+" in "+checkkit.Sanitize(wchan, 64))
				break
			}
		}
	}
	switch {
	case len(alive) == 0:
		return podstate.PodStage{}
	case frozen != "":
		return podstate.PodStage{Stage: "frozen",
			Text: fmt.Sprintf("its processes are frozen by cgroup %s and cannot be killed: %s", frozen,
				checkkit.JoinFirst(alive, 5))}
	case len(blocked) > 0:
		return podstate.PodStage{Stage: "blocked",
			Text: "its processes hang in the kernel (state D) and cannot be killed: " + checkkit.JoinFirst(blocked, 5)}
	}
	return podstate.PodStage{Stage: "processes",
		Text: fmt.Sprintf("%d of its processes still run: %s: kubelet or the runtime does not kill them; see "+
			"`journalctl -u kubelet -u containerd`", len(alive), checkkit.JoinFirst(alive, 5))}
}

// cgroupsOf returns the first frozen cgroup of a pod, and its processes.
func (e *podEvidence) cgroupsOf(uid string) (frozen string, pids []int) {
	seen := map[int]bool{}
	for _, c := range e.podCgroups()[uid] {
		if is, err := cgroup.Frozen(e.host, c); err == nil && is && frozen == "" {
			frozen = c.Path
		}
		data, err := e.host.Files.Read(path.Join(c.Dir(), "cgroup.procs"))
		if err != nil {
			continue // it has gone, or holds threads
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
