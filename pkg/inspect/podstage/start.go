package podstage

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host/podstate"
)

// How long a stage may last without a failure before it counts as stuck: like kubelet's own patience with volumes (2
// minutes), and like the check stuck-pods for images.
const (
	patience     = 2 * time.Minute
	pullPatience = 15 * time.Minute
)

// begun answers for a pod bound here and known to kubelet.
func (f Facts) begun(pod *corev1.Pod) Answer {
	if a, lost := f.noTrace(pod); lost {
		return a
	}
	if c, unfinished := podstate.UnfinishedInit(pod); unfinished && c.State.Waiting == nil {
		return f.initContainer(pod, c)
	}
	if podstate.IsStarting(pod) {
		return f.starting(pod)
	}
	for _, c := range containers(pod) {
		if w := c.State.Waiting; w != nil {
			return f.crashing(pod, c)
		}
	}
	return f.running(pod)
}

func (f Facts) starting(pod *corev1.Pod) Answer {
	c, _ := podstate.WaitingContainer(pod)
	s := podstate.Start{Waiting: c, Begun: len(pod.Status.ContainerStatuses) > 0, HostNetwork: pod.Spec.HostNetwork,
		RuntimeErr: f.Runtime.Err, Missing: f.Local.Missing, NetworkNotReady: f.Runtime.NetworkNotReady}
	ready, others := podstate.SandboxesOf(f.Runtime.Sandboxes, f.UID)
	s.Ready, s.Others = ready != nil, others
	s.Created = podstate.IsCreated(f.Runtime.Containers, ready, c.Name)
	a := Answer{Verdict: Stuck, Since: podStart(pod)}
	switch s.Stage() {
	case podstate.Unknown:
		a.Verdict, a.Stage = Unknown, CouldNotTell
		a.Blocker = "it has not started, and the container runtime does not answer: " + f.Runtime.Err.Error()
		a.Next = "nodeagent check runtime-health"
	case podstate.Image:
		f.imageFails(pod, c, &a)
	case podstate.Container:
		f.containerFails(c, &a)
	case podstate.Pull:
		a.Since = time.Unix(0, ready.CreatedAt)
		f.pulling(pod, c, &a)
	case podstate.Volumes:
		f.volumes(&a)
	case podstate.Begin:
		a.Stage, a.Blocker = Begin, "kubelet has not started working on it: it may wait for its image credentials, "+
			"its devices or the end of an earlier pod of the same name"
		a.Next = "journalctl -u kubelet | grep " + f.Name
		f.wait(&a, patience)
	default:
		f.sandbox(s, &a)
	}
	return a
}

// wait marks a recently begun stage as making progress.
func (f Facts) wait(a *Answer, limit time.Duration) {
	if f.Now.Sub(a.Since) < limit {
		a.Verdict = Waiting
	}
}

func (f Facts) imageFails(pod *corev1.Pod, c corev1.ContainerStatus, a *Answer) {
	image := podstate.ImageOf(pod, c.Name)
	a.Stage = Image
	a.Blocker = fmt.Sprintf("image %s of container %s cannot be pulled: %s", image, c.Name, waiting(c))
	if e := f.event("Failed"); e != "" && c.State.Waiting.Reason == "ImagePullBackOff" {
		a.Blocker += "; " + e
	}
	a.Next = "crictl pull " + argument(image) + " on this node shows the registry's answer"
	if _, own := podstate.WaitingStage(c); own {
		a.Next = "correct the image or imagePullPolicy in the pod's specification, or import the image on this node"
	}
}

func (f Facts) pulling(pod *corev1.Pod, c corev1.ContainerStatus, a *Answer) {
	image := podstate.ImageOf(pod, c.Name)
	a.Stage = Image
	switch here, known := f.Runtime.Images[image]; {
	case here:
		a.Stage = Container
		a.Blocker = fmt.Sprintf("image %s is here, but container %s is not created: the runtime is slow or hangs",
			image, c.Name)
		a.Next = f.journal()
		f.wait(a, patience)
	case known:
		a.Blocker = fmt.Sprintf("image %s of container %s is being pulled", image, c.Name)
		a.Next = "crictl pull " + argument(image) + " on this node shows how the pull goes"
		f.wait(a, pullPatience)
	default:
		a.Blocker = fmt.Sprintf("container %s is not created: its image %s is being pulled, or the runtime hangs",
			c.Name, image)
		a.Next = f.journal()
		f.wait(a, pullPatience)
	}
}

func (f Facts) containerFails(c corev1.ContainerStatus, a *Answer) {
	a.Stage = Container
	a.Blocker = "container " + c.Name + " is created, but the runtime does not start it"
	a.Next = f.journal()
	if stage, own := podstate.WaitingStage(c); stage != "" {
		a.Blocker = "container " + c.Name + ": " + waiting(c)
		switch {
		case own:
			a.Next = "create what the message names, or correct the pod: " + f.kubectl("describe pod "+f.Name)
		case c.State.Waiting.Reason == "RunContainerError":
			a.Next = f.cannotStart()
		}
	} else {
		f.wait(a, patience)
	}
}

// sandbox answers for a pod without a ready sandbox.
func (f Facts) sandbox(s podstate.Start, a *Answer) {
	a.Stage, a.Next = Sandbox, f.journal()
	event := f.event("FailedCreatePodSandBox")
	switch {
	case event != "":
		a.Blocker = "its sandbox cannot be created: " + event
		a.Next += "; nodeagent check " + network(s)
		return
	case s.NetworkNotReady != "" && !s.HostNetwork:
		a.Blocker = "it has no sandbox, because the runtime's network is not ready: " + s.NetworkNotReady
		a.Next = "nodeagent check cni-config; look at the network plugin's pod on this node"
		return
	case s.Others > 0:
		a.Blocker = fmt.Sprintf("its sandbox does not become ready (%d were tried): its network (CNI) or runtime class",
			s.Others)
	default:
		a.Blocker = "its volumes are set up, but it has no sandbox: the runtime or its network plugin (CNI) is slow, " +
			"hangs or fails"
		if f.Local.MissingErr != nil {
			a.Blocker = "it has no sandbox; its volumes could not be read: " + f.Local.MissingErr.Error()
		}
	}
	a.Next += "; nodeagent check " + network(s)
	if f.EventsErr != nil {
		a.Next += "; " + f.kubectl("describe pod "+f.Name) + " has kubelet's error"
	}
	f.wait(a, patience)
}

// network is the check that explains why a sandbox cannot be created: a pod in the node's network needs no CNI.
func network(s podstate.Start) string {
	if s.HostNetwork {
		return "runtime-health"
	}
	return "cni-config runtime-health"
}

// cannotStart is the next step for a container whose process cannot be started.
func (f Facts) cannotStart() string {
	return "correct command, args or image in the pod's specification, or what it mounts over its program: " +
		f.kubectl("describe pod "+f.Name) + " has the runtime's error"
}

// initContainer answers for a pod whose init container runs or has failed.
func (f Facts) initContainer(pod *corev1.Pod, c corev1.ContainerStatus) Answer {
	n := slices.IndexFunc(pod.Spec.InitContainers, func(s corev1.Container) bool { return s.Name == c.Name })
	a := Answer{Verdict: Waiting, Stage: InitContainer,
		Next: f.kubectl("logs " + f.Name + " -c " + argument(c.Name))}
	name := fmt.Sprintf("init container %s (%d of %d) ", c.Name, n+1, len(pod.Spec.InitContainers))
	switch {
	case c.State.Running != nil:
		a.Since, a.Blocker = c.State.Running.StartedAt.Time, name+"runs and has not ended"
		f.atMost(&a, pullPatience)
	case c.State.Terminated != nil:
		a.Verdict, a.Since = Stuck, c.State.Terminated.FinishedAt.Time
		a.Blocker = name + exited(c.State.Terminated)
	}
	return a
}

func (f Facts) atMost(a *Answer, limit time.Duration) {
	if f.Now.Sub(a.Since) >= limit {
		a.Verdict = Stuck
	}
}

// crashing answers for a pod with a container that waits for its restart.
func (f Facts) crashing(pod *corev1.Pod, c corev1.ContainerStatus) Answer {
	a := Answer{Verdict: Stuck, Stage: Container, Since: since(pod, corev1.ContainersReady),
		Blocker: fmt.Sprintf("container %s: %s (%d restarts)", c.Name, waiting(c), c.RestartCount),
		Next:    f.kubectl("logs " + f.Name + " -c " + argument(c.Name) + " --previous")}
	if slices.ContainsFunc(pod.Spec.InitContainers, func(s corev1.Container) bool { return s.Name == c.Name }) {
		a.Stage = InitContainer
	}
	if t := c.LastTerminationState.Terminated; t != nil {
		a.Since = t.FinishedAt.Time
		a.Blocker += "; it " + exited(t)
		if neverStarted(t) { // it has no log
			a.Next = f.cannotStart()
		}
	}
	return a
}

// running answers for a pod whose containers run.
func (f Facts) running(pod *corev1.Pod) Answer {
	var unready []string
	for _, c := range pod.Status.ContainerStatuses {
		if !c.Ready {
			text := c.Name
			if t := c.State.Terminated; t != nil {
				text += " " + exited(t)
			}
			unready = append(unready, text)
		}
	}
	a := Answer{Verdict: Stuck, Stage: NotReady, Since: since(pod, corev1.PodReady)}
	switch ready := condition(pod, corev1.PodReady); {
	case ready != nil && ready.Status == corev1.ConditionTrue:
		return Answer{Verdict: Fine, Stage: Healthy, Since: ready.LastTransitionTime.Time,
			Blocker: "nothing: it runs and is ready"}
	case len(unready) > 0:
		a.Blocker = "it runs, but is not ready: containers " + strings.Join(unready, ", ")
		if e := f.event("Unhealthy"); e != "" {
			a.Blocker += ": " + e
		}
		a.Next = f.kubectl("describe pod "+f.Name) + " (readiness probe); " + f.kubectl("logs "+f.Name)
	case ready != nil && ready.Reason == "ReadinessGatesNotReady":
		a.Blocker = "its containers are ready, but a readiness gate is not: " + ready.Message
	default:
		a.Blocker = "it runs, but is not reported as ready"
	}
	f.wait(&a, patience)
	return a
}

// podStart is when kubelet began with a pod, or it was bound.
func podStart(pod *corev1.Pod) time.Time {
	if pod.Status.StartTime != nil {
		return pod.Status.StartTime.Time
	}
	return since(pod, corev1.PodScheduled)
}
