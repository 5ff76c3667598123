package criticaldaemonsets

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
)

// TestCriticalDaemonSetsLimits has the cases at the boundary between two results.
func TestCriticalDaemonSetsLimits(t *testing.T) {
	const subject = "daemonset/kube-system/proxy="
	restarted := func(n *daemonNode, times int32) {
		n.pods = []corev1.Pod{n.loop(n.pod(corev1.ConditionTrue, time.Hour), true)}
		n.pods[0].Status.ContainerStatuses[0].RestartCount = times
	}
	for _, test := range []struct {
		name    string
		arrange func(n *daemonNode)
		want    []string
		err     string
	}{
		{name: "two restarts are no loop", arrange: func(n *daemonNode) { restarted(n, 2) }},
		{name: "three are", arrange: func(n *daemonNode) {
			restarted(n, 3)
		}, want: []string{subject + "DaemonSetPodCrashLooping marginal"}},
		{name: "made in a far future, by a clock that was wrong", arrange: func(n *daemonNode) {
			n.pods = []corev1.Pod{n.pod(corev1.ConditionFalse, -24*time.Hour)}
		}, want: []string{subject + "DaemonSetPodNotReady"}},
		{name: "the controller has not seen the change", arrange: func(n *daemonNode) {
			n.pods = nil
			n.edit(func(s *appsv1.DaemonSet) { s.Generation = 2 })
		}, err: "daemonset/kube-system/proxy: it has just been created or changed"},
		{name: "a pod that ended well serves nobody", arrange: func(n *daemonNode) {
			n.pods[0].Status.Phase = corev1.PodSucceeded
		}, want: []string{subject + "DaemonSetPodMissing"}},
		{name: "a pod that ended well hides none that serves", arrange: func(n *daemonNode) {
			ended := n.pod(corev1.ConditionTrue, time.Minute)
			ended.Status.Phase, ended.CreationTimestamp = corev1.PodSucceeded, metav1.NewTime(n.clock.Wall)
			n.pods = []corev1.Pod{ended, n.pod(corev1.ConditionFalse, time.Hour)}
		}, want: []string{subject + "DaemonSetPodNotReady"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newDaemonNode()
			test.arrange(n)
			found, err := New(DefaultSettings(), n.lookups()).Run(t.Context(), n.host)
			if diff := cmp.Diff(test.want, checktest.Reasons(found)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got := text(err); got != test.err {
				t.Errorf("error %q, want %q", got, test.err)
			}
		})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
