package podstage_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/pkg/inspect/podstage"
)

const uid = "00000000-0000-4000-8000-000000000001"

var now = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

// bound is a pod bound to this node by the scheduler half an hour ago, with a start time from kubelet.
func bound() *corev1.Pod {
	start := ago(30 * time.Minute)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: uid, CreationTimestamp: start},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "app", Image: "example.com/app:1"}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, StartTime: &start, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: start}}},
	}
}

// facts are the facts of a pod with only its directory on the node, if every source answered.
func facts(pod *corev1.Pod) podstage.Facts {
	source := podstage.Source{Asked: true, Pod: pod}
	return podstage.Facts{Node: "n1", Now: now, Namespace: "shop", Name: "web-0", UID: uid, Apiserver: source,
		Kubelet: source, Runtime: podstage.Runtime{Asked: true, Name: "containerd"},
		Local: podstage.Local{Directory: "/var/lib/kubelet/pods/" + uid}}
}

// waits is a pod with a waiting container.
func waits(reason, message string) *corev1.Pod {
	pod := bound()
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}
	return pod
}

func creating() *corev1.Pod { return waits("ContainerCreating", "") }

// runs is a running pod, ready or not.
func runs(ready corev1.ConditionStatus) *corev1.Pod {
	pod := bound()
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: ready,
		LastTransitionTime: ago(20 * time.Minute)})
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", Ready: ready == corev1.ConditionTrue,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: ago(25 * time.Minute)}}}}
	return pod
}

// deleted is a pod whose grace period ended some time ago.
func deleted(over time.Duration, finalizers ...string) *corev1.Pod {
	pod := runs(corev1.ConditionTrue)
	due, grace := ago(over), int64(60)
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds, pod.Finalizers = &due, &grace, finalizers
	return pod
}

func sandbox(state cri.PodSandboxState) *cri.PodSandbox {
	return &cri.PodSandbox{Id: strings.Repeat("a", 64), State: state, CreatedAt: now.Add(-20 * time.Minute).UnixNano(),
		Metadata: &cri.PodSandboxMetadata{Namespace: "shop", Name: "web-0", Uid: uid}}
}

func container(state cri.ContainerState) *cri.Container {
	return &cri.Container{Id: strings.Repeat("c", 64), PodSandboxId: strings.Repeat("a", 64), State: state,
		Metadata: &cri.ContainerMetadata{Name: "app"}, Labels: map[string]string{"io.kubernetes.pod.uid": uid}}
}

const ready, notReady = cri.PodSandboxState_SANDBOX_READY, cri.PodSandboxState_SANDBOX_NOTREADY

// with changes facts.
func with(f podstage.Facts, change func(*podstage.Facts)) podstage.Facts {
	change(&f)
	return f
}

func volume(missing string, v corev1.VolumeSource) podstage.Facts {
	pod := creating()
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: v}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	return with(facts(pod), func(f *podstage.Facts) { f.Local.Missing = []string{missing} })
}

func event(reason, message string) []corev1.Event {
	return []corev1.Event{{Reason: reason, Message: "an older one", LastTimestamp: ago(time.Hour)},
		{Reason: reason, Message: message, LastTimestamp: ago(time.Minute)}}
}

type want struct {
	verdict podstage.Verdict
	stage   podstage.Stage
	since   time.Duration // ago; 0 is not compared
	text    []string      // parts of blocker, holder and next, in this order
}

func check(t *testing.T, f podstage.Facts, w want) {
	t.Helper()
	a := podstage.Evaluate(f)
	if a.Verdict != w.verdict || a.Stage != w.stage {
		t.Errorf("%s, %s; want %s, %s: %s", a.Verdict, a.Stage, w.verdict, w.stage, a.Blocker)
	}
	if w.since != 0 && now.Sub(a.Since) != w.since {
		t.Errorf("since %s ago, want %s", now.Sub(a.Since), w.since)
	}
	rest := a.Blocker + "\n" + a.Holder + "\n" + a.Next
	for _, part := range w.text {
		_, after, found := strings.Cut(rest, part)
		if !found {
			t.Fatalf("no %q (in this order) in\n%s\n%s\n%s", part, a.Blocker, a.Holder, a.Next)
		}
		rest = after
	}
	if a.Verdict == podstage.Stuck && a.Next == "" {
		t.Error("no next step")
	}
}
