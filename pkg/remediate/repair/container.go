package repair

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/holders"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/podstate"
	"github.com/nodeagent/nodeagent/internal/host/proc"
	"github.com/nodeagent/nodeagent/internal/mutate"
)

// maxGrace bounds the grace of a container that is ended for a repair.
const maxGrace = time.Minute

// containerNeeds lists the guards of every action that ends a container.
func containerNeeds() []string {
	return []string{
		"kubelet answers, as it must start the container again",
		"kubelet's list, the runtime's list and the processes of the cgroup agree that this one container runs",
		"it has run for `unitAge`, and kubelet is not waiting to start it again (back-off)",
		"its pod is not static, is not terminating, and has restartPolicy Always",
		"neither kubelet, the runtime nor the agent runs in it",
		"no process in its cgroup holds /dev/fuse, /dev/cuse, an nbd or a ublk device",
	}
}

// livePods returns kubelet's current pods of this node, or the apiserver's if kubelet denies the agent access. It
// refuses if kubelet does not answer.
func livePods(ctx context.Context, h *host.Host) ([]corev1.Pod, error) {
	if h.Kubelet.Healthz == nil || h.Kubelet.Pods == nil {
		return nil, fmt.Errorf("kubelet: %w", hosterr.ErrNotConfigured)
	}
	if _, err := h.Kubelet.Healthz(ctx); err != nil {
		return nil, refuse("kubelet does not answer, and would not start the container again: %v", err)
	}
	pods, err := h.Kubelet.Pods(ctx)
	if errors.Is(err, fs.ErrPermission) && h.Cluster.Pods != nil {
		pods, err = h.Cluster.Pods(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("pods of this node: %w", err)
	}
	return pods, nil
}

// member is a container of a pod: its spec and its status from kubelet.
type member struct {
	pod    *corev1.Pod
	spec   *corev1.Container
	status *corev1.ContainerStatus // nil: kubelet reports none
}

// members returns the containers of the pods that have not ended.
func members(pods []corev1.Pod) []member {
	var all []member
	for i := range pods {
		pod := &pods[i]
		if podstate.IsFinished(pod) {
			continue
		}
		for j := range pod.Spec.Containers {
			m := member{pod: pod, spec: &pod.Spec.Containers[j]}
			for k := range pod.Status.ContainerStatuses {
				if pod.Status.ContainerStatuses[k].Name == m.spec.Name {
					m.status = &pod.Status.ContainerStatuses[k]
				}
			}
			all = append(all, m)
		}
	}
	return all
}

func (m member) String() string {
	return fmt.Sprintf("container %s of pod %s/%s", m.spec.Name, m.pod.Namespace, m.pod.Name)
}

// id is the ID of the running container, or "" if none runs.
func (m member) id() string {
	if m.status == nil || m.status.State.Running == nil {
		return ""
	}
	return host.ContainerIDOf(m.status)
}

// running is a container that may be ended.
type running struct {
	member
	object    mutate.RuntimeObject
	processes []proc.Stat // in its cgroup
	main      proc.Stat
}

// mayEnd checks that a container may be ended and will be started again.
func (m member) mayEnd(ctx context.Context, t Tools) (running, error) {
	if why := m.unfit(t); why != "" {
		return running{}, refuse("%s", why)
	}
	r := running{member: m}
	var err error
	if r.object, err = m.object(ctx, t.Host); err != nil {
		return r, err
	}
	if r.processes, err = t.Host.ContainerProcesses(r.object.ID); err != nil {
		return r, fmt.Errorf("processes of %s: %w", m, err)
	}
	var ok bool
	if r.main, ok = host.MainProcess(r.processes); !ok {
		return r, refuse("%s has no process", m)
	}
	// kubelet's start time is wall clock, which may have jumped since.
	age := t.Host.Clock().SinceBoot - time.Duration(r.main.StartTime)*10*time.Millisecond //nolint:gosec // ticks of this boot
	if age < t.Settings.UnitAge {
		return r, refuse("the main process of %s was started %s ago, less than %s", m, age.Round(time.Second), t.Settings.UnitAge)
	}
	if err := r.isNobodyNeeded(ctx, t.Host); err != nil {
		return r, err
	}
	return r, r.servesNothing(t.Host)
}

// unfit returns why a container must not be ended, judged by kubelet's status and the pod's object.
func (m member) unfit(t Tools) string {
	source := m.pod.Annotations["kubernetes.io/config.source"]
	_, mirror := m.pod.Annotations["kubernetes.io/config.mirror"]
	policy := m.pod.Spec.RestartPolicy
	if m.spec.RestartPolicy != nil {
		policy = corev1.RestartPolicy(*m.spec.RestartPolicy)
	}
	switch {
	case mirror || source != "" && source != "api":
		return fmt.Sprintf("%s is of a static pod", m)
	case m.pod.DeletionTimestamp != nil:
		return fmt.Sprintf("pod %s/%s ends", m.pod.Namespace, m.pod.Name)
	case policy != corev1.RestartPolicyAlways && policy != "":
		return fmt.Sprintf("%s would not be started again: its restartPolicy is %s", m, policy)
	case m.status == nil:
		return fmt.Sprintf("kubelet does not know %s yet", m)
	case m.status.State.Waiting != nil:
		return fmt.Sprintf("kubelet is about to start %s: %s", m, m.status.State.Waiting.Reason)
	case m.id() == "":
		return fmt.Sprintf("%s does not run", m)
	}
	age := t.Host.Clock().Wall.Sub(m.status.State.Running.StartedAt.Time)
	if age < t.Settings.UnitAge {
		return fmt.Sprintf("%s was started %s ago, less than %s", m, age.Round(time.Second), t.Settings.UnitAge)
	}
	return ""
}

// object returns the runtime's identity of the container that kubelet reports as running.
func (m member) object(ctx context.Context, h *host.Host) (mutate.RuntimeObject, error) {
	containers, err := host.Ask(ctx, "runtime", h.Runtime.Containers)
	if err != nil {
		return mutate.RuntimeObject{}, fmt.Errorf("containers of the runtime: %w", err)
	}
	var found []*cri.Container
	for _, c := range containers {
		if c.GetLabels()["io.kubernetes.pod.uid"] == host.NodePodUID(m.pod) &&
			c.GetLabels()["io.kubernetes.container.name"] == m.spec.Name &&
			c.GetState() == cri.ContainerState_CONTAINER_RUNNING {
			found = append(found, c)
		}
	}
	if len(found) != 1 || found[0].GetId() != m.id() {
		return mutate.RuntimeObject{}, refuse("kubelet reports %.12s as %s, but the runtime has %d running", m.id(), m,
			len(found))
	}
	return mutate.RuntimeObject{ID: found[0].GetId(), CreatedAt: found[0].GetCreatedAt()}, nil
}

// isNobodyNeeded refuses if kubelet, the runtime or the agent runs in the container.
func (r running) isNobodyNeeded(ctx context.Context, h *host.Host) error {
	own, err := h.OwnCgroups()
	if err != nil {
		return fmt.Errorf("the agent's own cgroup: %w", err)
	}
	uid := host.NodePodUID(r.pod)
	for _, name := range own {
		if of, _, ok := h.Paths.PodOfCgroup(name); ok && of == uid || strings.Contains(name, r.object.ID) {
			return refuse("the agent itself runs in pod %s/%s", r.pod.Namespace, r.pod.Name)
		}
	}
	kubelet, err := h.Kubelet.Process()
	if err != nil {
		return fmt.Errorf("the process of kubelet: %w", err)
	}
	runtime, err := h.Runtime.Process(ctx)
	if err != nil {
		return fmt.Errorf("the process of the runtime: %w", err)
	}
	if r.has(kubelet.PID) || r.has(runtime.PID) {
		return refuse("kubelet or the runtime runs in %s", r)
	}
	return nil
}

// has reports whether a process is in the container.
func (r running) has(pid int) bool {
	return slices.ContainsFunc(r.processes, func(p proc.Stat) bool { return p.PID == pid })
}

// servesNothing refuses if a process of the container serves a device: the mounts on it would die with the process.
func (r running) servesNothing(h *host.Host) error {
	for _, p := range r.processes {
		device, err := holders.ServesDevice(h, p.PID)
		if err != nil {
			return fmt.Errorf("open files of process %d of %s: %w", p.PID, r, err)
		}
		if device != "" {
			return refuse("process %d (%s) of %s holds %s: storage that it serves would be lost", p.PID, p.Comm, r, device)
		}
	}
	return nil
}

// again returns the container with its current processes, or an error if one of them serves a device.
func (r running) again(h *host.Host) (running, error) {
	var err error
	if r.processes, err = h.ContainerProcesses(r.object.ID); err != nil {
		return r, fmt.Errorf("processes of %s: %w", r, err)
	}
	return r, r.servesNothing(h)
}

// grace is the time from the container's stop signal to SIGKILL.
func (r running) grace() time.Duration {
	grace := 30 * time.Second // the default of Kubernetes
	if seconds := r.pod.Spec.TerminationGracePeriodSeconds; seconds != nil {
		grace = time.Duration(*seconds) * time.Second
	}
	return min(max(grace, time.Second), maxGrace)
}

// restart returns the job that ends the container, so that kubelet starts it again.
func (r running) restart(t Tools, why string) Job {
	return Job{
		Does: fmt.Sprintf("end %s (%.12s, %d processes, grace %s) so that kubelet starts it again: %s", r, r.object.ID,
			len(r.processes), r.grace(), why),
		Identity: map[string]string{"pod": r.pod.Namespace + "/" + r.pod.Name, "uid": string(r.pod.UID),
			"container": r.object.ID, "createdAt": strconv.FormatInt(r.object.CreatedAt, 10),
			"pid": strconv.Itoa(r.main.PID)},
		Do: func(ctx context.Context) (string, error) {
			now, err := r.again(t.Host) // it may have begun to serve a device since the look
			if err != nil {
				return "", notBegun(err)
			}
			err = t.Mutator.EndContainer(ctx, r.object, r.grace())
			if outlived, ok := errors.AsType[mutate.StillRuns](err); ok {
				return "", fmt.Errorf("not done, because %w: %s", outlived, now.whatHangs(t.Host))
			}
			return "", err
		},
	}
}

// after returns the job that asks a guard once more before it acts.
func (j Job) after(guard func() error) Job {
	do := j.Do
	j.Do = func(ctx context.Context) (string, error) {
		if err := guard(); err != nil {
			return "", notBegun(err)
		}
		return do(ctx)
	}
	return j
}

// whatHangs names the processes of the container that wait in the kernel, where no signal ends them.
func (r running) whatHangs(h *host.Host) string {
	var hanging []string
	for _, p := range r.processes {
		tids, err := h.TIDs(p.PID)
		if err != nil {
			continue // it has ended
		}
		for _, tid := range tids {
			if stat, err := h.TaskStat(p.PID, tid); err == nil && stat.State == 'D' {
				hanging = append(hanging, fmt.Sprintf("%d (%s)", tid, stat.Comm))
			}
		}
	}
	if len(hanging) == 0 {
		return "the runtime gives no reason"
	}
	const most = 5
	return fmt.Sprintf("%s hang in the kernel (state D) and end only when the device or server that they wait for answers, or with a reboot",
		strings.Join(hanging[:min(len(hanging), most)], ", "))
}
