package kinds_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host/volume"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

const csiPlugins = "plugins/kubernetes.io/csi"

// stage makes a volume's files as a CSI driver and kubelet do, and returns its directory.
func (n *node) stage(handle string) string {
	dir := filepath.Join(csiPlugins, "d.example.com", volume.HandleSum(handle))
	n.Write(fmt.Sprintf(`{"driverName":"d.example.com","volumeHandle":%q}`, handle), dir, "vol_data.json")
	n.Mount("tmpfs", n.Mkdir(n.Host.Paths.KubeletRoot, dir, "globalmount"), "tmpfs", 0)
	return filepath.Join(n.Host.Paths.KubeletRoot, dir)
}

// publish makes kubelet's note of a volume of a pod.
func (n *node) publish(uid, handle string) string {
	return n.Write(fmt.Sprintf(`{"driverName":"d.example.com","volumeHandle":%q,"specVolID":"pv-%s"}`, handle, handle),
		"pods", uid, "volumes/kubernetes.io~csi", "pv-"+handle, "vol_data.json")
}

func handleOf(o object.Assessment) string {
	if handle := o.Facts["volumeHandle"]; handle != "" {
		return handle
	}
	return strings.TrimPrefix(o.ID[strings.Index(o.ID, "kubernetes.io"):], "kubernetes.io/")
}

// A staged volume is a leftover only if no pod, no mount and not the Node's status shows a use of it.
func TestStagedVolumes(t *testing.T) {
	n := newNode(t)
	for _, handle := range []string{"unused", "living", "dead", "shared", "in-use"} {
		n.stage(handle)
	}
	n.publish(living, "living")
	n.publish(living, "shared")
	n.publish(dead, "shared")
	n.publish(dead, "dead")
	n.NodeObject.Status.VolumesInUse = []corev1.UniqueVolumeName{"kubernetes.io/csi/d.example.com^in-use"}
	elsewhere := n.stage("elsewhere")
	n.Mount(filepath.Join(elsewhere, "globalmount"), n.Mkdir(t.TempDir(), "admin"), "", unix.MS_BIND)
	bound := n.stage("bound") // by a pod whose note is lost
	n.Mount(filepath.Join(bound, "globalmount"), n.PodDir(living, "volumes/kubernetes.io~csi/x/mount"), "",
		unix.MS_BIND)
	n.Write(`{`, csiPlugins, "d.example.com", volume.HandleSum("broken"), "vol_data.json")
	root := n.Host.Paths.KubeletRoot
	n.Mkdir(root, csiPlugins, "volumeDevices/raw/dev")
	n.Mkdir(root, csiPlugins, "volumeDevices/raw-living/dev")
	n.Mkdir(root, "pods", living, "volumeDevices/kubernetes.io~csi/raw-living")
	n.Mkdir(root, csiPlugins, "volumeDevices/staging/raw-dead")
	n.Mkdir(root, csiPlugins, "volumeDevices/raw-dead/dev", dead)
	n.Mkdir(root, csiPlugins, "d.example.com", "no-volume")
	n.Mount("tmpfs", n.Mkdir(root, "plugins/kubernetes.io/rbd/mounts/image"), "tmpfs", 0)
	report := n.ripen(t, object.History{}, n.inspector())
	inspecttest.NoErrors(t, report)
	csi := strings.TrimPrefix(csiPlugins, "plugins/kubernetes.io/") + "/"
	want := map[string]object.Verdict{"unused": object.Unowned, "living": object.Live, "dead": object.Leftover,
		"shared": object.Live, "in-use": object.Live,
		"elsewhere": object.Live, "bound": object.Live,
		csi + "d.example.com/" + volume.HandleSum("broken"): object.Unowned,
		csi + "volumeDevices/raw":                           object.Unowned, csi + "volumeDevices/raw-living": object.Live,
		csi + "volumeDevices/raw-dead": object.Leftover, csi + "volumeDevices/staging/raw-dead": object.Unowned,
		"rbd/mounts/image": object.Unowned}
	if diff := cmp.Diff(want, verdictsByName(report, object.StagedVolume, handleOf)); diff != "" {
		t.Error(diff)
	}
}

// While a pod's volumes are unknown, or it has not started, a staged volume may be that pod's.
func TestStagedVolumeMayBeAPods(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*node)
		want   object.Verdict
	}{
		"a pod with a claim waits": {func(n *node) {
			n.Kubelet[0].Status.Phase = corev1.PodPending
			n.Kubelet[0].Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
		}, object.Live},
		"a pod without claims waits": {func(n *node) { n.Kubelet[0].Status.Phase = corev1.PodPending },
			object.Unowned},
		"a note that is huge": {func(n *node) {
			n.Write(strings.Repeat(" ", 1<<17), "pods", living, "volumes/kubernetes.io~csi/x/vol_data.json")
		}, object.Unknown},
		"a note of others": {func(n *node) {
			if err := os.Chmod(n.publish(living, "x"), 0o666); err != nil {
				n.t.Fatal(err)
			}
		}, object.Unknown},
		"a note that is a link": {func(n *node) {
			note := n.publish(living, "x")
			if err := errors.Join(os.Rename(note, note+".json"), os.Symlink(note+".json", note)); err != nil {
				n.t.Fatal(err)
			}
		}, object.Unknown},
		"kubelet does not answer": {func(n *node) { n.KubeletErr = errors.New("refused") }, object.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.stage("v")
			test.change(n)
			report := n.ripen(t, object.History{}, n.inspector())
			if diff := cmp.Diff(map[string]object.Verdict{"v": test.want}, verdictsByName(report,
				object.StagedVolume, handleOf)); diff != "" {
				t.Errorf("%s\n%+v", diff, report.Errors)
			}
		})
	}
}

// A newly staged volume is not reported.
func TestYoungStagedVolume(t *testing.T) {
	n := newNode(t)
	n.stage("v")
	report, _ := n.inspector().Pass(t.Context(), object.History{})
	if got := verdictsByName(report, object.StagedVolume, handleOf); got["v"] != object.Live {
		t.Error(got)
	}
}
