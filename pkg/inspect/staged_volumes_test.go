package inspect

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
)

const csiPlugins = "plugins/kubernetes.io/csi"

// write writes a file below kubelet's root, and makes its directories.
func (n *node) write(text string, parts ...string) string {
	n.t.Helper()
	name := filepath.Join(append([]string{n.host.Paths.KubeletRoot}, parts...)...)
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o750), os.WriteFile(name, []byte(text), 0o600)); err != nil {
		n.t.Fatal(err)
	}
	return name
}

// stage makes what a CSI driver and kubelet make of a volume, and returns its directory.
func (n *node) stage(handle string) string {
	dir := filepath.Join(csiPlugins, "d.example.com", volume.HandleSum(handle))
	n.write(fmt.Sprintf(`{"driverName":"d.example.com","volumeHandle":%q}`, handle), dir, "vol_data.json")
	n.mount("tmpfs", n.mkdir(n.host.Paths.KubeletRoot, dir, "globalmount"), "tmpfs", 0)
	return filepath.Join(n.host.Paths.KubeletRoot, dir)
}

// publish makes kubelet's note of a volume of a pod.
func (n *node) publish(uid, handle string) string {
	return n.write(fmt.Sprintf(`{"driverName":"d.example.com","volumeHandle":%q,"specVolID":"pv-%s"}`, handle, handle),
		"pods", uid, "volumes/kubernetes.io~csi", "pv-"+handle, "vol_data.json")
}

// verdictsByName returns the verdicts on the objects of a kind, by the last part of their IDs.
func verdictsByName(report Report, kind Kind, name func(Assessment) string) map[string]Verdict {
	got := map[string]Verdict{}
	for _, o := range report.Objects {
		if o.Kind == kind {
			got[name(o)] = o.Verdict
		}
	}
	return got
}

func handleOf(o Assessment) string {
	if handle := o.Facts["volumeHandle"]; handle != "" {
		return handle
	}
	return strings.TrimPrefix(o.ID[strings.Index(o.ID, "kubernetes.io"):], "kubernetes.io/")
}

// A staged volume is a leftover only where no pod, no mount and not the Node's status shows a use of it.
func TestStagedVolumes(t *testing.T) {
	n := newNode(t)
	for _, handle := range []string{"unused", "living", "dead", "shared", "in-use"} {
		n.stage(handle)
	}
	n.publish(living, "living")
	n.publish(living, "shared")
	n.publish(dead, "shared")
	n.publish(dead, "dead")
	n.object.Status.VolumesInUse = []corev1.UniqueVolumeName{"kubernetes.io/csi/d.example.com^in-use"}
	elsewhere := n.stage("elsewhere")
	n.mount(filepath.Join(elsewhere, "globalmount"), n.mkdir(t.TempDir(), "admin"), "", unix.MS_BIND)
	bound := n.stage("bound") // by a pod whose note is lost
	n.mount(filepath.Join(bound, "globalmount"), n.podDir(living, "volumes/kubernetes.io~csi/x/mount"), "", unix.MS_BIND)
	n.write(`{`, csiPlugins, "d.example.com", volume.HandleSum("broken"), "vol_data.json")
	root := n.host.Paths.KubeletRoot
	n.mkdir(root, csiPlugins, "volumeDevices/raw/dev")
	n.mkdir(root, csiPlugins, "volumeDevices/raw-living/dev")
	n.mkdir(root, "pods", living, "volumeDevices/kubernetes.io~csi/raw-living")
	n.mkdir(root, csiPlugins, "volumeDevices/staging/raw-dead")
	n.mkdir(root, csiPlugins, "volumeDevices/raw-dead/dev", dead)
	n.mkdir(root, csiPlugins, "d.example.com", "no-volume")
	n.mount("tmpfs", n.mkdir(root, "plugins/kubernetes.io/rbd/mounts/image"), "tmpfs", 0)
	report := n.ripen(t, History{}, n.inspector())
	noErrors(t, report)
	csi := strings.TrimPrefix(csiPlugins, "plugins/kubernetes.io/") + "/"
	want := map[string]Verdict{"unused": Unowned, "living": Live, "dead": Leftover, "shared": Live, "in-use": Live,
		"elsewhere": Live, "bound": Live, csi + "d.example.com/" + volume.HandleSum("broken"): Unowned,
		csi + "volumeDevices/raw": Unowned, csi + "volumeDevices/raw-living": Live,
		csi + "volumeDevices/raw-dead": Leftover, csi + "volumeDevices/staging/raw-dead": Unowned,
		"rbd/mounts/image": Unowned}
	if diff := cmp.Diff(want, verdictsByName(report, StagedVolume, handleOf)); diff != "" {
		t.Error(diff)
	}
}

// While a pod's volumes are not known, or it has not started, a staged volume may be that pod's.
func TestStagedVolumeMayBeAPods(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*node)
		want   Verdict
	}{
		"a pod with a claim waits": {func(n *node) {
			n.kubelet[0].Status.Phase = corev1.PodPending
			n.kubelet[0].Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
		}, Live},
		"a pod without claims waits": {func(n *node) { n.kubelet[0].Status.Phase = corev1.PodPending }, Unowned},
		"a note that is huge": {func(n *node) {
			n.write(strings.Repeat(" ", 1<<17), "pods", living, "volumes/kubernetes.io~csi/x/vol_data.json")
		}, Unknown},
		"a note of others": {func(n *node) {
			if err := os.Chmod(n.publish(living, "x"), 0o666); err != nil {
				n.t.Fatal(err)
			}
		}, Unknown},
		"a note that is a link": {func(n *node) {
			note := n.publish(living, "x")
			if err := errors.Join(os.Rename(note, note+".json"), os.Symlink(note+".json", note)); err != nil {
				n.t.Fatal(err)
			}
		}, Unknown},
		"kubelet does not answer": {func(n *node) { n.kubeletErr = errors.New("refused") }, Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.stage("v")
			test.change(n)
			report := n.ripen(t, History{}, n.inspector())
			if diff := cmp.Diff(map[string]Verdict{"v": test.want}, verdictsByName(report, StagedVolume, handleOf)); diff != "" {
				t.Errorf("%s\n%+v", diff, report.Errors)
			}
		})
	}
}

// A volume that was staged a moment ago is not reported.
func TestYoungStagedVolume(t *testing.T) {
	n := newNode(t)
	n.stage("v")
	report, _ := n.inspector().Pass(t.Context(), History{})
	if got := verdictsByName(report, StagedVolume, handleOf); got["v"] != Live {
		t.Error(got)
	}
}
