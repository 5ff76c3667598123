package daemonsethang

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/proc"
	"github.com/nodeagent/nodeagent/internal/host/socket"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// observation is the state of a DaemonSet's container in one run. It is zero if none runs: other checks report that.
type observation struct {
	Pod       string // namespace/name
	Container string // its name
	ID        string // of the container that runs
	Main      main
	Silent    string         // why its socket gives no answer; empty if it does, or none is listed
	Blocked   map[int]uint64 // threads of the main process in state D: their time on a processor
}

// main is the main process of a container.
type main struct {
	ID        string // of the container
	PID       int
	StartTime uint64
}

// observe examines the container of a DaemonSet, whose main process was found before unless known is zero.
func observe(ctx context.Context, h *host.Host, w Watched, pods []corev1.Pod, known main,
	patience time.Duration) (observation, error) {
	pod, status, err := containerOf(w, pods)
	if err != nil || pod == nil {
		return observation{}, err
	}
	l := observation{Pod: pod.Namespace + "/" + pod.Name, Container: status.Name, ID: host.ContainerIDOf(status)}
	if l.Main, err = mainProcess(h, l.ID, known); err != nil {
		return l, err
	}
	if l.Blocked, err = blockedThreads(h, l.Main.PID); err != nil {
		return l, err
	}
	network, address := "unix", w.Socket
	if w.Port != 0 {
		ip := pod.Status.PodIP
		if pod.Spec.HostNetwork {
			ip = "127.0.0.1"
		}
		if ip == "" {
			return l, fmt.Errorf("pod %s has no address", l.Pod)
		}
		network, address = "tcp", net.JoinHostPort(ip, strconv.Itoa(w.Port))
	}
	if address == "" {
		return l, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := socket.Responds(ctx, network, address); err != nil {
		l.Silent = checkkit.Sanitize(err.Error(), 300)
	}
	return l, nil
}

// containerOf returns the pod of a DaemonSet on this node and the container to examine; no pod if none runs that could
// hang.
func containerOf(w Watched, pods []corev1.Pod) (*corev1.Pod, *corev1.ContainerStatus, error) {
	for i := range pods {
		pod := &pods[i]
		owner := metav1.GetControllerOfNoCopy(pod)
		if owner == nil || owner.Kind != "DaemonSet" || pod.Namespace+"/"+owner.Name != w.Name ||
			pod.DeletionTimestamp != nil || checkkit.PodFinished(pod) {
			continue
		}
		if w.Container == "" && len(pod.Spec.Containers) != 1 {
			return nil, nil, fmt.Errorf("its pod %s has %d containers: the configuration must name one", pod.Name,
				len(pod.Spec.Containers))
		}
		for j := range pod.Status.ContainerStatuses {
			status := &pod.Status.ContainerStatuses[j]
			if w.Container != "" && status.Name != w.Container {
				continue
			}
			if status.State.Running == nil || status.Started != nil && !*status.Started {
				return nil, nil, nil
			}
			return pod, status, nil
		}
		if w.Container != "" {
			return nil, nil, fmt.Errorf("its pod %s has no container %q", pod.Name, w.Container)
		}
	}
	return nil, nil, nil
}

// mainProcess returns the main process of a container: the known one as long as it exists.
func mainProcess(h *host.Host, id string, known main) (main, error) {
	if known.ID == id {
		if stat, err := h.ProcStat(known.PID); err == nil && stat.StartTime == known.StartTime {
			return known, nil
		}
	}
	processes, err := h.ContainerProcesses(id)
	if err != nil {
		return main{}, err
	}
	stat, ok := host.MainProcess(processes)
	if !ok {
		return main{}, fmt.Errorf("container %.12s has no process", id)
	}
	return main{ID: id, PID: stat.PID, StartTime: stat.StartTime}, nil
}

// blockedThreads returns the threads of a process that are in state D, with their time on a processor.
func blockedThreads(h *host.Host, pid int) (map[int]uint64, error) {
	tids, err := h.TIDs(pid)
	if err != nil {
		return nil, err
	}
	blocked := map[int]uint64{}
	for _, tid := range tids {
		stat, err := h.TaskStat(pid, tid)
		if proc.UnlessGone(err) != nil {
			return nil, err
		}
		if err == nil && stat.State == 'D' {
			blocked[tid] = stat.CPUTicks
		}
	}
	return blocked, nil
}

// A container hangs if it did so in this many looks over this time, and no look between them disproves it.
const (
	hungRuns = 3
	hungSpan = 5 * time.Minute
)

// streak is a series of looks with the same result.
type streak struct {
	since finding.Timestamp
	runs  int
}

func (s *streak) add(now finding.Timestamp) {
	if s.runs++; s.runs == 1 {
		s.since = now
	}
}

func (s streak) hung(now finding.Timestamp) bool {
	return s.runs >= hungRuns && now.Since(s.since) >= hungSpan
}

// watch is the state kept for one DaemonSet.
type watch struct {
	main    main
	silent  streak
	blocked streak
	threads map[int]uint64 // in state D in each look of the streak, with their time on a processor
}

// evaluate adds a look and returns the fault, or why there is none to report yet. A failed look is no evidence, and
// does not end a streak.
func (w *watch) evaluate(l observation, failed error, now finding.Timestamp) (*finding.Finding, error) {
	if failed != nil {
		return nil, failed
	}
	if l.Main != w.main {
		*w = watch{main: l.Main}
	}
	if l.ID == "" {
		return nil, nil
	}
	w.addBlocked(l.Blocked, now)
	if l.Silent == "" {
		w.silent = streak{}
	} else {
		w.silent.add(now)
	}
	what := fmt.Sprintf("container %s of pod %s", l.Container, l.Pod)
	facts := map[string]string{"pod": l.Pod, "container": l.Container, "containerID": l.ID,
		"pid": strconv.Itoa(l.Main.PID)}
	switch {
	case w.blocked.hung(now):
		tid := slices.Min(slices.Collect(maps.Keys(w.threads)))
		return &finding.Finding{Severity: finding.Warning, Reason: "DaemonSetPodHungInKernel", Facts: facts,
			Message: fmt.Sprintf("%s hangs in the kernel: thread %d of its process %d has been in state D for %s", what,
				tid, l.Main.PID, minutes(now.Since(w.blocked.since)))}, nil
	case w.silent.hung(now):
		return &finding.Finding{Severity: finding.Warning, Reason: "DaemonSetPodNotAnswering", Facts: facts,
			Message: fmt.Sprintf("%s does not answer on its health socket, for %s by now: %s", what,
				minutes(now.Since(w.silent.since)), l.Silent)}, nil
	case w.silent.runs > 0:
		return nil, fmt.Errorf("%s does not answer; it hangs if that lasts %s: %s", what, hungSpan, l.Silent)
	case w.blocked.runs > 1:
		return nil, fmt.Errorf("a thread of process %d of %s is in state D; it hangs if that lasts %s", l.Main.PID, what,
			hungSpan)
	}
	return nil, nil
}

// addBlocked keeps the threads that have been in state D all the time, or starts again with those of now.
func (w *watch) addBlocked(now map[int]uint64, at finding.Timestamp) {
	maps.DeleteFunc(w.threads, func(tid int, ticks uint64) bool {
		seen, still := now[tid]
		return !still || seen != ticks
	})
	if len(w.threads) == 0 {
		w.blocked, w.threads = streak{}, maps.Clone(now)
	}
	if len(w.threads) > 0 {
		w.blocked.add(at)
	}
}

// minutes rounds a time so that a message does not change with each run.
func minutes(d time.Duration) time.Duration { return d.Truncate(5 * time.Minute) }
