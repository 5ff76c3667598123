package answerkey

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// twice returns two of a play.
func twice(p play) []*play {
	first, second := p, p
	first.name, second.name = p.name+"-0", p.name+"-1"
	return []*play{&first, &second}
}

// stages are the reasons without an error: the open stage at the deadline.
func stages() (all []*play) {
	memory := func(o *corev1.Pod) {
		o.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
	}
	withInit := func(o *corev1.Pod) { o.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "init:1"}} }
	initial := func(state object) object {
		return object{"initContainerStatuses": []any{object{"name": "i", "image": "init:1", "imageID": "", "ready": false, "restartCount": 0, "state": state}}}
	}
	volume := func(o *corev1.Pod) {
		o.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "disk.example"}}}}
	}
	gate := func(o *corev1.Pod) {
		o.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/gate"}}
	}
	on := func(node string) func(*corev1.Pod) { return func(o *corev1.Pod) { o.Spec.NodeName = node } }
	containersReady := status("Running", container(true, running()), "PodReadyToStartContainers", "Initialized", "ContainersReady")
	sandboxed := status("Pending", nil, "PodReadyToStartContainers", "Initialized")
	preempted := status("Failed", container(false, terminated(137, "Error")))
	preempted["conditions"] = append(preempted["conditions"].([]any), condition("DisruptionTarget", "True", "PreemptionByScheduler", ""))
	for _, p := range []play{
		{name: "s-scheduler", schedule: "-", reason: "SchedulerSlow", class: system},
		{name: "s-nominated", schedule: "-", from: "nominated", reason: "PreemptionWait", class: system},
		{name: "s-kubelet", pod: on("node-b"), reason: "KubeletSlow", class: system},
		{name: "s-lost", pod: on("node-lost"), reason: "NodeLost", class: system},
		{name: "s-mount", pod: volume, steps: []step{{0, hasStarted()}}, reason: "MountSlow", class: system},
		{name: "s-sandbox", steps: []step{{0, hasStarted()}}, reason: "SandboxFailed", class: system},
		{name: "s-pull", steps: []step{{0, sandboxed}}, events: []said{{"Normal", "Pulling", `Pulling image "app:7"`, "c"}}, reason: "ImagePullCostTime", class: system},
		{name: "s-queued", steps: []step{{0, sandboxed}, {promised + 2*time.Second, isReady()}}, events: []said{{"Normal", "Pulling", `Pulling image "app:7"`, "c"},
			{"Normal", "Pulled", `Successfully pulled image "app:7" in 1.5s (11.5s including waiting). Image size: 1234 bytes.`, "c"}}, reason: "", class: ""},
		{name: "s-init", pod: withInit, steps: []step{{0, status("Pending", initial(running()), "PodReadyToStartContainers")}}, reason: "InitSlow", class: user},
		{name: "s-initfailed", pod: withInit, steps: []step{{0, status("Pending", initial(terminated(1, "Error")), "PodReadyToStartContainers")}}, reason: "InitFailed", class: user},
		{name: "s-oom", pod: memory, steps: []step{{0, status("Running", container(false, terminated(137, "OOMKilled")), "PodReadyToStartContainers", "Initialized")}}, reason: "OOMKilledByLimit", class: user},
		{name: "s-oomnode", steps: []step{{0, status("Running", container(false, terminated(137, "OOMKilled")), "PodReadyToStartContainers", "Initialized")}}, reason: "OOMKilledByNode", class: system},
		{name: "s-exit", steps: []step{{0, status("Running", container(false, terminated(2, "Error")), "PodReadyToStartContainers", "Initialized")}}, reason: "CrashLoopBackOff", class: user},
		{name: "s-probe", steps: []step{{0, isRunning()}}, events: []said{{"Warning", "Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 500", "c"}}, reason: "ProbeFailing", class: user},
		{name: "s-ready", steps: []step{{0, isRunning()}}, reason: "ReadinessSlow", class: user},
		{name: "s-gate", pod: gate, steps: []step{{0, containersReady}}, reason: "ReadinessGateWaiting", class: system},
		{name: "s-create", steps: []step{{0, sandboxed}}, events: []said{{"Normal", "Pulled", `Container image "app:7" already present on machine`, "c"}}, reason: "RuntimeError", class: system},
		{name: "s-preempted", steps: []step{{0, preempted}}, then: removeFailed, reason: "Preempted", class: system, verdicts: "creation missed,deletion delivered"},
	} {
		if p.verdicts == "" {
			p.verdicts = "creation missed"
		}
		all = append(all, twice(p)...)
	}
	return all
}

// edges are pods close to a boundary of the definitions.
func edges() []*play {
	hooked := func(o *corev1.Pod) {
		o.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}}}
	}
	sized := func(o *corev1.Pod) {
		o.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	}
	job := func(o *corev1.Pod) { o.Spec.RestartPolicy = corev1.RestartPolicyNever }
	mirror := func(o *corev1.Pod) { o.Annotations[corev1.MirrorPodAnnotationKey] = "x" }
	gated := func(o *corev1.Pod) { o.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/gate"}} }
	slow := func(o *corev1.Pod) { grace := int64(60); o.Spec.TerminationGracePeriodSeconds = &grace }
	ended := []step{{promised + 2*time.Second, hasEnded()}}
	return []*play{
		{name: "e-intime", steps: []step{{promised - 5*time.Second, isReady()}}, verdicts: "creation delivered"},
		{name: "e-late", steps: []step{{0, hasStarted()}, {promised + 2*time.Second, isReady()}}, verdicts: "creation missed", reason: "SandboxFailed", class: system},
		{name: "e-hook", pod: hooked, steps: []step{{promised - 8*time.Second, isRunning()}, {10 * time.Second, isReady()}}, events: []said{{"Normal", "Started", "Started container c", "c"}}, verdicts: "creation delivered"},
		{name: "e-hooklate", pod: hooked, steps: []step{{2 * time.Second, isRunning()}, {promised + 4*time.Second, isReady()}}, events: []said{{"Normal", "Started", "Started container c", "c"}}, verdicts: "creation missed", reason: "ReadinessSlow", class: user},
		{name: "e-jobfailed", pod: job, steps: []step{{0, status("Failed", container(false, terminated(1, "Error")))}}, verdicts: "creation delivered"},
		{name: "e-jobdone", pod: job, steps: []step{{0, status("Succeeded", container(false, terminated(0, "Completed")))}}, verdicts: "creation delivered"},
		{name: "e-jobrefused", pod: job, steps: []step{{0, status("Failed", object{"reason": "OutOfpods", "message": "Pod was rejected"})}}, verdicts: "creation missed", reason: "RejectedByNode", class: system},
		{name: "e-gated", pod: gated, schedule: "-", then: openGate, steps: []step{{0, isReady()}}, verdicts: "creation delivered"},
		{name: "e-gatedgone", pod: gated, schedule: "-", then: remove(3 * time.Second), verdicts: "creation excluded,deletion delivered"},
		{name: "e-removed", steps: []step{{0, hasStarted()}}, then: remove(3 * time.Second), verdicts: "creation excluded,deletion delivered"},
		{name: "e-removedlate", steps: []step{{0, hasStarted()}}, then: remove(promised + 2*time.Second), verdicts: "creation missed,deletion delivered", reason: "SandboxFailed", class: system},
		{name: "e-grace", pod: slow, steps: []step{{0, isReady()}}, stop: ended, then: killingToEnd, verdicts: "creation delivered,deletion delivered"},
		{name: "e-again", steps: []step{{0, isReady()}}, then: again, verdicts: "creation delivered,deletion delivered"},
		{name: "e-static", pod: mirror, steps: []step{{0, hasStarted()}}, verdicts: "creation excluded"},
		{name: "e-upgrade", steps: []step{{0, isReady()}}, then: upgrade(3*time.Second, ""), verdicts: "creation delivered,upgrade delivered"},
		{name: "e-deferred", pod: sized, steps: []step{{0, isReady()}}, then: resize("Deferred"), verdicts: "creation delivered,upgrade missed", reason: "ResizeDeferred", class: system},
		{name: "e-deferred-again", pod: sized, steps: []step{{0, isReady()}}, then: resize("Deferred"), verdicts: "creation delivered,upgrade missed", reason: "ResizeDeferred", class: system},
		{name: "e-infeasible", pod: sized, steps: []step{{0, isReady()}}, then: resize("Infeasible"), verdicts: "creation delivered,upgrade missed", reason: "ResizeInfeasible", class: user},
		{name: "e-infeasible-again", pod: sized, steps: []step{{0, isReady()}}, then: resize("Infeasible"), verdicts: "creation delivered,upgrade missed", reason: "ResizeInfeasible", class: user},
		{name: "e-upgradelate", steps: []step{{0, isReady()}}, then: upgrade(0, "ErrImagePull"), verdicts: "creation delivered,upgrade missed", reason: "ImageNotFound", class: user},
	}
}

// deletions are the reasons of late deletions.
func deletions() (all []*play) {
	grace := func(o *corev1.Pod) { two := int64(2); o.Spec.TerminationGracePeriodSeconds = &two }
	held := func(o *corev1.Pod) { grace(o); o.Finalizers = []string{"example.com/hold"} }
	unmanaged := func(o *corev1.Pod) { grace(o); o.Spec.NodeName = "node-b" }
	ended := []step{{0, hasEnded()}}
	const late = "creation delivered,deletion missed"
	for _, p := range []play{
		{name: "d-finalizer", pod: held, steps: []step{{0, isReady()}}, stop: ended, then: killing, verdicts: late, reason: "FinalizerHeld", class: system},
		{name: "d-finalizer-over", pod: held, steps: []step{{0, isReady()}}, stop: ended, then: release, verdicts: late, reason: "GoneNotReported", class: system},
		{name: "d-unkillable", pod: grace, steps: []step{{0, isReady()}}, then: killing, verdicts: late, reason: "ContainerUnkillable", class: system},
		{name: "d-noticed", pod: grace, steps: []step{{0, isReady()}}, then: whenReady, verdicts: late, reason: "StopNotNoticed", class: system},
		{name: "d-notreported", pod: grace, steps: []step{{0, isReady()}}, stop: ended, then: killing, verdicts: late, reason: "GoneNotReported", class: system},
		{name: "d-early", pod: unmanaged, then: remove(2 * time.Second), verdicts: "creation excluded,deletion missed", reason: "StopNotNoticed", class: system},
		{name: "d-sandbox", pod: grace, steps: []step{{0, isReady()}}, stop: ended, then: killingWith("FailedKillPod",
			`error killing pod: failed to "KillPodSandbox" for "u" with KillPodSandboxError: "rpc error: code = Unknown desc = failed to stop"`), verdicts: late, reason: "SandboxStopFailed", class: system},
		{name: "d-network", pod: grace, steps: []step{{0, isReady()}}, stop: ended, then: killingWith("FailedKillPod",
			`error killing pod: KillPodSandboxError: "failed to destroy network for sandbox"`), verdicts: late, reason: "NetworkReleaseFailed", class: system},
	} {
		all = append(all, twice(p)...)
	}
	return all
}
