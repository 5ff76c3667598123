package csiregistration

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/fakecsi"
)

const fakeName = "fake.csi.example.com"

// csiNode is a node whose kubelet, CSINode and clock belong to the test, and whose sockets are real.
type csiNode struct {
	t       *testing.T
	host    *host.Host
	pods    []corev1.Pod
	nodeIDs map[string]string
	podsErr error
	nodeErr error
	reads   int // of CSINode
	clock   finding.Timestamp
}

func newCSINode(t *testing.T) *csiNode {
	n := &csiNode{t: t, nodeIDs: map[string]string{}, clock: finding.Timestamp{Wall: time.Now(), Boot: "b",
		SinceBoot: time.Hour}}
	root, err := os.MkdirTemp("", "csi") // t.TempDir is too long for the name of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	if err := os.Mkdir(filepath.Join(root, "plugins_registry"), 0o750); err != nil {
		t.Fatal(err)
	}
	n.host = &host.Host{NodeName: "node-1", Plugins: kubelet.NewPlugins(root), Clock: func() finding.Timestamp {
		return n.clock
	}}
	n.host.Paths.KubeletRoot, n.host.Paths.PluginRegistry = root, filepath.Join(root, "plugins_registry")
	n.host.Kubelet.Pods = func(context.Context) ([]corev1.Pod, error) { return n.pods, n.podsErr }
	n.host.Cluster.CSINode = func(context.Context) (*storagev1.CSINode, error) {
		n.reads++
		object := &storagev1.CSINode{}
		for name, id := range n.nodeIDs {
			object.Spec.Drivers = append(object.Spec.Drivers, storagev1.CSINodeDriver{Name: name, NodeID: id})
		}
		return object, n.nodeErr
	}
	return n
}

func (n *csiNode) pass(d time.Duration) {
	n.clock.SinceBoot += d
	n.clock.Wall = n.clock.Wall.Add(d)
}

func (n *csiNode) start(o fakecsi.Options) *fakecsi.Driver {
	n.t.Helper()
	if o.Name == "" {
		o.Name = fakeName
	}
	o.KubeletRoot = n.host.Paths.KubeletRoot
	d, err := fakecsi.Start(n.t.Context(), o)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = d.Stop() })
	return d
}

// driverPod is a pod that runs the fake driver with the usual registrar.
func (n *csiNode) driverPod(name string, age time.Duration) corev1.Pod {
	endpoint := filepath.Join(n.host.Paths.KubeletRoot, "plugins", name, "csi.sock")
	started := metav1.NewTime(n.clock.Wall.Add(-age))
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "csi-node", CreationTimestamp: started},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "driver"},
			{Name: "registrar", Args: []string{"--v=2", "--kubelet-registration-path=$(SOCKET)"},
				Env: []corev1.EnvVar{{Name: "SOCKET", Value: endpoint}}},
		}, Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: n.host.Paths.PluginRegistry}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{
			{Name: "registrar",
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}}},
		}},
	}
}

// claims returns a pod with a claim for which kubelet has recorded a volume of the driver.
func (n *csiNode) claims(driver string) corev1.Pod {
	const uid = "0c2b7b0e-7d4b-4f0c-9a77-111111111111"
	dir := filepath.Join(n.host.Paths.KubeletRoot, "pods", uid, "volumes/kubernetes.io~csi/pvc-1")
	data := []byte(`{"driverName":"` + driver + `","volumeHandle":"v"}`)
	if err := errors.Join(os.MkdirAll(dir, 0o750), os.WriteFile(filepath.Join(dir, "vol_data.json"), data,
		0o600)); err != nil {
		n.t.Fatal(err)
	}
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db", UID: uid},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}}}
}

// inline returns a pod whose specification names a driver.
func inline(driver string) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "tenant"},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{
			CSI: &corev1.CSIVolumeSource{Driver: driver}}}}}}
}

func testCSISettings() Settings {
	s := DefaultSettings()
	s.Timeout = time.Minute // except if a call hangs
	return s
}
