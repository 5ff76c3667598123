package csiregistration

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestCSIPodOf(t *testing.T) {
	hostPath := func(paths ...string) corev1.PodSpec {
		var spec corev1.PodSpec
		for _, p := range paths {
			spec.Volumes = append(spec.Volumes,
				corev1.Volume{VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: p}}})
		}
		return spec
	}
	args := func(words ...string) corev1.PodSpec {
		spec := hostPath("/var/lib/kubelet/plugins_registry")
		spec.Containers = []corev1.Container{{Command: words[:1], Args: words[1:]}}
		return spec
	}
	tests := []struct {
		name string
		spec corev1.PodSpec
		want string
	}{
		{"registrar", args("/r", "--kubelet-registration-path=/var/lib/kubelet/plugins/ebs.csi.aws.com/csi.sock"),
			"ebs.csi.aws.com"},
		{"registrar, two words", args("/r", "-kubelet-registration-path", "/k/plugins/x/csi.sock"), "x"},
		{"registrar without a directory of the host", corev1.PodSpec{Containers: []corev1.Container{
			{Args: []string{"--kubelet-registration-path=/k/plugins/x/csi.sock"}}}}, ""},
		{"registrar, variable unknown", args("/r", "--kubelet-registration-path=$(X)"), ""},
		{"registrar, relative", args("/r", "--kubelet-registration-path=x/csi.sock"), ""},
		{"folders", hostPath("/var/lib/kubelet/plugins_registry/", "/var/lib/kubelet/plugins/nfs.csi.k8s.io"),
			"nfs.csi.k8s.io"},
		{"all plugins", hostPath("/var/lib/kubelet/plugins_registry", "/var/lib/kubelet/plugins"), ""},
		{"no registry", hostPath("/var/lib/kubelet/plugins/x"), ""},
		{"another path", hostPath("/var/lib/kubelet/plugins_registry", "/var/lib/kubelet/plugins/x/y",
			"/data/plugins/z"), ""},
		{"any pod", corev1.PodSpec{}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := csiPodOf(&corev1.Pod{Spec: tt.spec}, "/var/lib/kubelet")
			if ok != (tt.want != "") || ok && got.Driver != tt.want {
				t.Errorf("got %+v %t, want %q", got, ok, tt.want)
			}
		})
	}
}
