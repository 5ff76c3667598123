package podstage_test

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host/podstate"
	"github.com/nodeagent/nodeagent/pkg/inspect/podstage"
)

func TestStarting(t *testing.T) {
	fresh := func(pod *corev1.Pod) *corev1.Pod {
		start := ago(time.Minute)
		pod.Status.StartTime = &start
		return pod
	}
	initRuns := bound()
	initRuns.Spec.InitContainers = []corev1.Container{{Name: "a"}, {Name: "migrate"}}
	initRuns.Status.InitContainerStatuses = []corev1.ContainerStatus{
		{Name: "a", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}},
		{Name: "migrate", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{
			StartedAt: ago(20 * time.Minute)}}}}
	crash := waits("CrashLoopBackOff", "back-off 5m0s")
	crash.Status.Phase = corev1.PodRunning
	crash.Status.ContainerStatuses[0].RestartCount = 7
	crash.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 137,
		Reason: "OOMKilled", FinishedAt: ago(3 * time.Minute)}
	cannotStart := crash.DeepCopy()
	cannotStart.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 128,
		Reason: "StartError", Message: `exec: "/nope": no such file`, FinishedAt: ago(3 * time.Minute)}
	sandboxed := func(f *podstage.Facts) { f.Runtime.Sandboxes = []*cri.PodSandbox{sandbox(ready)} }
	for name, c := range map[string]struct {
		facts podstage.Facts
		want  want
	}{
		"missing ConfigMap": {with(volume("v (ConfigMap settings)", corev1.VolumeSource{}), func(f *podstage.Facts) {
			f.Objects = []podstage.Object{{Kind: "ConfigMap", Name: "settings", Volume: "v"}}
		}), want{podstage.Stuck, podstage.Volumes, 30 * time.Minute, []string{
			"volume v needs ConfigMap shop/settings, which does not exist", "kubectl -n shop get configmap settings"}}},
		"missing ConfigMap, no right to ask": {with(volume("v (ConfigMap settings)", corev1.VolumeSource{}),
			func(f *podstage.Facts) {
				f.Objects = []podstage.Object{{Kind: "ConfigMap", Name: "settings", Volume: "v",
					Err: errors.New("configmaps is forbidden")}}
			}), want{podstage.Stuck, podstage.Volumes, 0, []string{"not set up: v (ConfigMap settings)",
			"could not be told: configmaps is forbidden", "describe pod"}}},
		"CSI driver not registered": {with(volume("v (CSI driver d.example.com)", corev1.VolumeSource{
			CSI: &corev1.CSIVolumeSource{Driver: "d.example.com"}}), func(f *podstage.Facts) {
			f.Drivers = podstage.Drivers{Asked: true, Registered: []string{"other.example.com"}}
		}), want{podstage.Stuck, podstage.Volumes, 0, []string{"CSI driver d.example.com, which has not registered",
			"nodeagent check csi-registration"}}},
		"claim pending": {with(volume("v (claim data)", corev1.VolumeSource{}), func(f *podstage.Facts) {
			f.Claims = []podstage.Claim{{Volume: "v", Name: "data", Phase: "Pending"}}
		}), want{podstage.Stuck, podstage.Volumes, 0, []string{"claim data is Pending", "describe pvc data"}}},
		"not attached": {with(volume("v (claim data)", corev1.VolumeSource{}), func(f *podstage.Facts) {
			f.Drivers = podstage.Drivers{Asked: true, Registered: []string{"d"}}
			f.Claims = []podstage.Claim{{Volume: "v", Name: "data", Phase: "Bound", PV: "pv1", Driver: "d",
				Attachment: "csi-1", Attaching: "Multi-Attach"}}
		}), want{podstage.Stuck, podstage.Volumes, 0, []string{"not attached to this node: Multi-Attach",
			"describe volumeattachment csi-1"}}},
		"mount fails": {with(volume("v (NFS 10.0.0.1)", corev1.VolumeSource{}), func(f *podstage.Facts) {
			f.Events = event("FailedMount", "mount.nfs: access denied")
		}), want{podstage.Stuck, podstage.Volumes, 0, []string{"v (NFS 10.0.0.1): mount.nfs: access denied"}}},
		"volumes still have time": {with(volume("v (emptyDir)", corev1.VolumeSource{}), func(f *podstage.Facts) {
			fresh(f.Apiserver.Pod)
		}), want{podstage.Waiting, podstage.Volumes, time.Minute, nil}},
		"image fails": {facts(waits("ImagePullBackOff", "not found")), want{podstage.Stuck, podstage.Image,
			30 * time.Minute, []string{"example.com/app:1 of container app cannot be pulled", "not found",
				"crictl pull example.com/app:1"}}},
		"image is being pulled": {with(facts(creating()), func(f *podstage.Facts) {
			sandboxed(f)
			f.Runtime.Images = map[string]bool{"example.com/app:1": false}
		}), want{podstage.Stuck, podstage.Image, 20 * time.Minute, []string{"is being pulled", "crictl pull"}}},
		"image is here": {with(facts(creating()), func(f *podstage.Facts) {
			sandboxed(f)
			f.Runtime.Images = map[string]bool{"example.com/app:1": true}
		}), want{podstage.Stuck, podstage.Container, 20 * time.Minute, []string{"is not created", "journalctl"}}},
		"sandbox fails": {with(facts(creating()), func(f *podstage.Facts) {
			f.Runtime.Sandboxes = []*cri.PodSandbox{sandbox(notReady)}
			f.Events = event("FailedCreatePodSandBox", "no IP addresses available")
		}), want{podstage.Stuck, podstage.Sandbox, 0, []string{"no IP addresses available", "check cni-config"}}},
		"network not ready": {with(facts(creating()), func(f *podstage.Facts) {
			f.Runtime.NetworkNotReady = "cni plugin not initialized"
		}), want{podstage.Stuck, podstage.Sandbox, 0, []string{"network is not ready: cni plugin not initialized"}}},
		"sandbox does not become ready, by the network": {with(facts(creating()), func(f *podstage.Facts) {
			f.Runtime.Sandboxes = []*cri.PodSandbox{sandbox(notReady)}
		}), want{podstage.Stuck, podstage.Sandbox, 0, []string{"1 were tried", "check cni-config"}}},
		"no sandbox at all": {facts(creating()), want{podstage.Stuck, podstage.Sandbox, 0, []string{"it has no sandbox",
			"check cni-config"}}},
		"no sandbox, in the network of the node": {with(facts(creating()), func(f *podstage.Facts) {
			f.Apiserver.Pod.Spec.HostNetwork = true
		}), want{podstage.Stuck, podstage.Sandbox, 0, []string{"it has no sandbox", "check runtime-health"}}},
		"cannot be started": {facts(waits("RunContainerError", "failed to create containerd task")), want{podstage.Stuck,
			podstage.Container, 0, []string{"RunContainerError", "correct command, args or image", "describe pod web-0"}}},
		"crash loop of one that cannot be started": {facts(cannotStart), want{podstage.Stuck, podstage.Container, 3 * time.Minute,
			[]string{"StartError", `exec: "/nope": no such file`, "correct command, args or image"}}},
		"sandbox does not become ready": {with(facts(creating()), func(f *podstage.Facts) {
			f.Runtime.Sandboxes = []*cri.PodSandbox{sandbox(notReady)}
			f.EventsErr = errors.New("forbidden")
		}), want{podstage.Stuck, podstage.Sandbox, 0, []string{"1 were tried", "journalctl -u containerd",
			"describe pod web-0"}}},
		"not begun": {facts(bound()), want{podstage.Stuck, podstage.Begin, 30 * time.Minute,
			[]string{"kubelet has not started working on it"}}},
		"container not started": {with(facts(creating()), func(f *podstage.Facts) {
			sandboxed(f)
			f.Runtime.Containers = []*cri.Container{container(cri.ContainerState_CONTAINER_CREATED)}
		}), want{podstage.Stuck, podstage.Container, 0, []string{"is created, but the runtime does not start it"}}},
		"container config": {facts(waits("CreateContainerConfigError", `configmap "x" not found`)), want{podstage.Stuck,
			podstage.Container, 0, []string{`CreateContainerConfigError: configmap "x" not found`, "create what"}}},
		"crash loop": {facts(crash), want{podstage.Stuck, podstage.Container, 3 * time.Minute, []string{
			"CrashLoopBackOff", "7 restarts", "exited with code 137 (OOMKilled)", "--previous"}}},
		"init container": {facts(initRuns), want{podstage.Stuck, podstage.InitContainer, 20 * time.Minute,
			[]string{"init container migrate (2 of 2) runs", "logs web-0 -c migrate"}}},
		"runtime does not answer": {with(facts(creating()), func(f *podstage.Facts) {
			f.Runtime = podstage.Runtime{Asked: true, Err: errors.New("no answer within 5s")}
		}), want{podstage.Unknown, podstage.CouldNotTell, 0, []string{"no answer within 5s", "check runtime-health"}}},
	} {
		t.Run(name, func(t *testing.T) { check(t, c.facts, c.want) })
	}
}

// refused is a pod that kubelet has not admitted.
func refused(reason string) *corev1.Pod {
	pod := bound()
	pod.Status.Phase, pod.Status.Reason, pod.Status.Message = corev1.PodFailed, reason, "Pod was rejected"
	return pod
}

func refusal(parts ...string) want {
	return want{podstage.Stuck, podstage.Failed, 0, append([]string{"Pod was rejected"}, parts...)}
}

func TestRunning(t *testing.T) {
	unheard := podstage.Runtime{Asked: true, Err: errors.New("permission denied")}
	failsToStart := bound()
	failsToStart.Status.Phase = corev1.PodFailed
	failsToStart.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: 128, Reason: "StartError", Message: "no such file"}}}}
	failed := bound()
	failed.Status.Phase, failed.Status.Reason = corev1.PodFailed, "Evicted"
	done := bound()
	done.Status.Phase = corev1.PodSucceeded
	for name, c := range map[string]struct {
		facts podstage.Facts
		want  want
	}{
		"healthy": {facts(runs(corev1.ConditionTrue)), want{podstage.Fine, podstage.Healthy, 20 * time.Minute, nil}},
		"healthy, the runtime is not heard": {with(facts(runs(corev1.ConditionTrue)), func(f *podstage.Facts) {
			f.Runtime = unheard
		}), want{podstage.Fine, podstage.Healthy, 0, nil}},
		"completed": {facts(done), want{podstage.Fine, podstage.Completed, 0, nil}},
		"failed":    {facts(failed), want{podstage.Stuck, podstage.Failed, 0, []string{"Evicted"}}},
		"cannot be started": {facts(failsToStart), want{podstage.Stuck, podstage.Failed, 0, []string{"StartError",
			"correct command, args or image"}}},
		"refused by kubelet":            {facts(refused("OutOfcpu")), refusal("describe node n1", "delete pod web-0")},
		"refused by kubelet, memory":    {facts(refused("OutOfmemory")), refusal("describe node n1", "delete pod web-0")},
		"refused by kubelet, a device":  {facts(refused("OutOfnvidia.com/gpu")), refusal("describe node n1", "delete pod web-0")},
		"refused by kubelet, admission": {facts(refused("UnexpectedAdmissionError")), refusal("describe node n1", "delete pod web-0")},
		"not ready": {with(facts(runs(corev1.ConditionFalse)), func(f *podstage.Facts) {
			f.Events = event("Unhealthy", "Readiness probe failed: 503")
		}), want{podstage.Stuck, podstage.NotReady, 20 * time.Minute, []string{"containers app",
			"Readiness probe failed: 503", "kubectl -n shop"}}},
		"no trace": {with(facts(runs(corev1.ConditionTrue)), func(f *podstage.Facts) { f.Local = podstage.Local{} }),
			want{podstage.Stuck, podstage.NoTrace, 0, []string{"no trace of it", "journalctl -u kubelet"}}},
		"no trace, but not all could be read": {with(facts(runs(corev1.ConditionTrue)), func(f *podstage.Facts) {
			f.Local, f.Runtime = podstage.Local{}, unheard
		}), want{podstage.Unknown, podstage.CouldNotTell, 0, []string{"runtime: permission denied", "as root"}}},
	} {
		t.Run(name, func(t *testing.T) { check(t, c.facts, c.want) })
	}
}

func TestTerminating(t *testing.T) {
	blocked := podstate.Process{PID: 42, Comm: "app", Wchan: "request_wait_answer"}
	over := func(change func(*podstage.Facts)) podstage.Facts { return with(facts(deleted(10*time.Minute)), change) }
	for name, c := range map[string]struct {
		facts podstage.Facts
		want  want
	}{
		"grace period": {with(facts(deleted(-40*time.Second)), func(f *podstage.Facts) {
			f.Local.Processes = []podstate.Process{{PID: 42, Comm: "app"}}
		}), want{podstage.Waiting, podstage.GracePeriod, 20 * time.Second, []string{"ends in 40s"}}},
		"blocked": {over(func(f *podstage.Facts) { f.Local.Processes = []podstate.Process{blocked} }),
			want{podstage.Stuck, podstage.EndContainer, 10 * time.Minute, []string{"state D, in request_wait_answer",
				"pid 42 app", "cat /proc/42/stack"}}},
		"frozen": {over(func(f *podstage.Facts) {
			f.Local.Processes = []podstate.Process{blocked}
			f.Local.Frozen, f.Local.Thaw = "/kubepods/pod1", "echo 0 > /sys/fs/cgroup/kubepods/pod1/cgroup.freeze"
		}), want{podstage.Stuck, podstage.EndContainer, 0, []string{"frozen by cgroup /kubepods/pod1", "pid 42",
			"echo 0 > /sys/fs/cgroup/kubepods/pod1/cgroup.freeze"}}},
		"not killed": {over(func(f *podstage.Facts) { f.Local.Processes = []podstate.Process{{PID: 42, Comm: "app"}} }),
			want{podstage.Stuck, podstage.EndContainer, 0, []string{"still run", "pid 42 app", "journalctl"}}},
		"shim hangs": {over(func(f *podstage.Facts) {
			f.Runtime.Containers = []*cri.Container{container(cri.ContainerState_CONTAINER_RUNNING)}
		}), want{podstage.Stuck, podstage.EndContainer, 0, []string{"container app as running"}}},
		"CNI DEL fails": {over(func(f *podstage.Facts) {
			f.Runtime.Sandboxes = []*cri.PodSandbox{sandbox(notReady)} // containerd ends it before it calls the plugin
			f.Local.Mounts = []podstage.Mount{{Point: "/token", FSType: "tmpfs"}}
			f.Events, f.Local.Attachments = event("FailedKillPod", "plugin bridge failed"), []string{"pods 10.1.0.7/24"}
		}), want{podstage.Stuck, podstage.EndSandbox, 0, []string{"plugin bridge failed", "network pods 10.1.0.7/24",
			"crictl stopp aaaaaaaaaaaaa "}}},
		"CNI DEL has just failed": {with(facts(deleted(time.Second)), func(f *podstage.Facts) {
			f.Events, f.Local.Attachments = event("FailedKillPod", "plugin bridge failed"), []string{"pods 10.1.0.7/24"}
		}), want{podstage.Stuck, podstage.EndSandbox, 0, []string{"plugin bridge failed"}}},
		"sandbox is not stopped": {over(func(f *podstage.Facts) {
			f.Runtime.Sandboxes = []*cri.PodSandbox{sandbox(ready)}
		}), want{podstage.Stuck, podstage.EndSandbox, 0, []string{"crictl stopp aaaaaaaaaaaaa "}}},
		"volume busy": {over(func(f *podstage.Facts) {
			f.Local.Mounts = []podstage.Mount{{Point: "/a", FSType: "tmpfs"}, {Point: "/data", FSType: "ext4",
				Holders: []podstage.Holder{{PID: 77, Command: "backup", How: "cwd", Pod: "other"}}}}
		}), want{podstage.Stuck, podstage.EndVolumes, 0, []string{"2 volumes are still mounted: /data (ext4)",
			"pid 77 backup (cwd), of pod other", "args -p 77"}}},
		"volume busy, holder not found in time": {over(func(f *podstage.Facts) {
			f.Local.Mounts = []podstage.Mount{{Point: "/data", FSType: "ext4"}}
			f.Local.HoldersErr = errors.New("cut short")
		}), want{podstage.Stuck, podstage.EndVolumes, 0, []string{"/data", "could not be told: cut short"}}},
		"finalizers": {facts(deleted(10*time.Minute, "example.com/hold")), want{podstage.Stuck, podstage.EndFinalizers,
			0, []string{"example.com/hold", "not this node"}}},
		"nothing is left": {facts(deleted(10 * time.Minute)), want{podstage.Stuck, podstage.EndRelease, 0,
			[]string{"kubelet has not let the apiserver delete it"}}},
		"ends just now": {facts(deleted(time.Second)), want{podstage.Waiting, podstage.EndRelease, 0, nil}},
		"the runtime does not answer": {over(func(f *podstage.Facts) {
			f.Runtime = podstage.Runtime{Asked: true, Err: errors.New("no answer")}
		}), want{podstage.Unknown, podstage.CouldNotTell, 0, []string{"no answer"}}},
		"cgroups cannot be read": {over(func(f *podstage.Facts) { f.Local.CgroupsErr = errors.New("permission denied") }),
			want{podstage.Unknown, podstage.CouldNotTell, 0, []string{"permission denied"}}},
	} {
		t.Run(name, func(t *testing.T) { check(t, c.facts, c.want) })
	}
}

func TestNotHere(t *testing.T) {
	none := podstage.Source{Asked: true}
	absent := func(change func(*podstage.Facts)) podstage.Facts {
		return with(facts(nil), func(f *podstage.Facts) {
			f.Local, f.Elsewhere = podstage.Local{}, podstage.Source{Asked: true}
			change(f)
		})
	}
	elsewhere, unscheduled, fresh := bound(), bound(), bound()
	elsewhere.Spec.NodeName, unscheduled.Spec.NodeName = "n2", ""
	unscheduled.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Reason: "Unschedulable",
		Message: "0/3 nodes are available"}}
	fresh.Status.StartTime = nil
	static := runs(corev1.ConditionTrue)
	static.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	pods := schema.GroupResource{Resource: "pods"}
	for name, c := range map[string]struct {
		facts podstage.Facts
		want  want
	}{
		"on another node": {absent(func(f *podstage.Facts) { f.Elsewhere.Pod = elsewhere }), want{podstage.Stuck,
			podstage.NotBoundHere, 0, []string{"on node n2", "nodeagent inspect pod shop/web-0"}}},
		"on none": {absent(func(f *podstage.Facts) { f.Elsewhere.Pod = unscheduled }), want{podstage.Stuck,
			podstage.NotBoundHere, 0, []string{"Unschedulable: 0/3 nodes are available"}}},
		"no such pod, perhaps for a quota": {absent(func(f *podstage.Facts) {}), want{podstage.Stuck, podstage.NoSuchPod, 0,
			[]string{"there is no such pod", "kubectl -n shop get events --field-selector reason=FailedCreate",
				"kubectl -n shop describe resourcequota"}}},
		"no such pod": {absent(func(f *podstage.Facts) { f.Elsewhere.Err = apierrors.NewNotFound(pods, "web-0") }),
			want{podstage.Stuck, podstage.NoSuchPod, 0, []string{"there is no such pod"}}},
		"no right to ask for it elsewhere": {absent(func(f *podstage.Facts) {
			f.Elsewhere.Err = apierrors.NewForbidden(pods, "web-0", errors.New("no relationship"))
		}), want{podstage.Unknown, podstage.NotBoundHere, 0, []string{"could not be told", "no right to read pods"}}},
		"left behind": {absent(func(f *podstage.Facts) {
			f.Runtime.Sandboxes = []*cri.PodSandbox{sandbox(ready)}
			f.Local.Processes = []podstate.Process{{PID: 42, Comm: "app"}}
		}), want{podstage.Stuck, podstage.LeftBehind, 20 * time.Minute, []string{"sandboxes: 1, processes: 1",
			"pid 42 app", "nodeagent inspect"}}},
		"static, without a mirror": {with(facts(nil), func(f *podstage.Facts) { f.Kubelet.Pod = static }),
			want{podstage.Fine, podstage.Healthy, 0, nil}},
		"unknown to kubelet": {with(facts(bound()), func(f *podstage.Facts) {
			f.Kubelet, f.Local = none, podstage.Local{}
		}), want{podstage.Stuck, podstage.UnknownToKubelet, 30 * time.Minute, []string{"kubelet does not have it",
			"journalctl -u kubelet"}}},
		"kubelet is not heard, and has set nothing": {with(facts(fresh), func(f *podstage.Facts) {
			f.Kubelet.Pod, f.Kubelet.Err, f.Local = nil, errors.New("forbidden"), podstage.Local{}
		}), want{podstage.Stuck, podstage.UnknownToKubelet, 30 * time.Minute, nil}},
		"kubelet is not heard, but it has begun": {with(facts(bound()), func(f *podstage.Facts) {
			f.Kubelet.Pod, f.Kubelet.Err = nil, errors.New("forbidden")
		}), want{podstage.Stuck, podstage.Begin, 0, nil}},
		"only kubelet is heard": {with(facts(waits("ErrImagePull", "refused")), func(f *podstage.Facts) {
			f.Apiserver = podstage.Source{Asked: true, Err: errors.New("connection refused")}
		}), want{podstage.Stuck, podstage.Image, 0, []string{"refused"}}},
		"nobody is heard": {absent(func(f *podstage.Facts) {
			f.Apiserver.Err, f.Kubelet.Err = errors.New("connection refused"), errors.New("forbidden")
		}), want{podstage.Unknown, podstage.CouldNotTell, 0, []string{"connection refused", "docs/security.md"}}},
		"the apiserver is not heard, kubelet lacks it, it runs": {absent(func(f *podstage.Facts) {
			f.Apiserver.Err = errors.New("connection refused")
			f.Runtime.Sandboxes = []*cri.PodSandbox{sandbox(ready)}
		}), want{podstage.Unknown, podstage.CouldNotTell, 0, []string{"still belongs here"}}},
	} {
		t.Run(name, func(t *testing.T) { check(t, c.facts, c.want) })
	}
}

// Foreign text cannot reach a terminal, or a command that people copy, unescaped.
func TestHostileText(t *testing.T) {
	pod := waits("ImagePullBackOff", "\x1b[2Jgone\n\xff")
	pod.Spec.Containers[0].Image = "x; rm -rf /"
	a := podstage.Evaluate(facts(pod))
	for _, e := range a.Evidence {
		a.Blocker += e.Text
	}
	if strings.ContainsAny(a.Blocker, "\x1b\n") || !utf8.ValidString(a.Blocker) || strings.Contains(a.Next, "rm") {
		t.Errorf("%q, next %q", a.Blocker, a.Next)
	}
}
