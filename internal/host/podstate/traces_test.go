package podstate_test

import (
	"errors"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/podstate"
)

// Kubelet's directory is a link to a data disk, and the mount table shows the path on that disk: the pod's mounts are
// found, and a mounted CSI volume is not reported missing.
func TestKubeletDirectoryBehindALink(t *testing.T) {
	h := &host.Host{Files: host.Files{Root: t.TempDir()}, Paths: host.Paths{KubeletRoot: "/var/lib/kubelet"}}
	const volume = "/data/kubelet/pods/" + hosttest.PodUID + "/volumes/kubernetes.io~csi/pv-1/mount"
	if err := errors.Join(os.MkdirAll(h.Files.Path(volume), 0o755), os.MkdirAll(h.Files.Path("/var/lib"), 0o755),
		os.Symlink("../../data/kubelet", h.Files.Path("/var/lib/kubelet"))); err != nil {
		t.Fatal(err)
	}
	mounts := []mount.Mount{{ID: 22, Point: "/"}, {ID: 31, Parent: 22, Point: volume}}
	if found := podstate.MountsOf(h, mounts, hosttest.PodUID); len(found) != 1 || found[0].ID != 31 {
		t.Errorf("mounts %+v", found)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: hosttest.PodUID}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{VolumeMounts: []corev1.VolumeMount{{Name: "data"}}}},
		Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}}}
	if missing, err := podstate.MissingVolumes(h, mounts, pod); len(missing) > 0 || err != nil {
		t.Errorf("missing: %q, %v", missing, err)
	}
}
