package criticaldaemonsets

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPlace(t *testing.T) {
	taint := func(key string, effect corev1.TaintEffect) []corev1.Taint {
		return []corev1.Taint{{Key: key, Effect: effect}}
	}
	tests := []struct {
		name   string
		spec   corev1.PodSpec
		taints []corev1.Taint
		labels map[string]string
		want   bool
	}{
		{name: "anywhere", want: true},
		{name: "this node by name", spec: corev1.PodSpec{NodeName: "node-1"}, want: true},
		{name: "another node by name", spec: corev1.PodSpec{NodeName: "node-2"}},
		{name: "selector matches", spec: corev1.PodSpec{NodeSelector: map[string]string{"a": "b"}},
			labels: map[string]string{"a": "b"}, want: true},
		{name: "selector does not match", spec: corev1.PodSpec{NodeSelector: map[string]string{"a": "b"}}},
		{name: "cordoned", taints: taint(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule), want: true},
		{name: "not ready", taints: taint(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute), want: true},
		{name: "disk pressure", taints: taint(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule), want: true},
		{name: "no network", taints: taint(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule)},
		{name: "no network needed", spec: corev1.PodSpec{HostNetwork: true},
			taints: taint(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule), want: true},
		{name: "reserved", taints: taint("team", corev1.TaintEffectNoSchedule)},
		{name: "preferably elsewhere", taints: taint("team", corev1.TaintEffectPreferNoSchedule), want: true},
		{name: "reserved for it", spec: corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: "team",
			Operator: corev1.TolerationOpExists}}},
			taints: taint("team", corev1.TaintEffectNoExecute), want: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			set := &appsv1.DaemonSet{Spec: appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: tt.spec}}}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: tt.labels},
				Spec: corev1.NodeSpec{Taints: tt.taints}}
			if got := placementOn(set, node); got.Here != tt.want {
				t.Errorf("got %+v, want %t", got, tt.want)
			}
		})
	}
}
