package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	hostkubelet "github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/volume"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Kubelet stores what a CSI volume is in <pod>/volumes/kubernetes.io~csi/<volume>/vol_data.json (pkg/volume/csi,
// csi_mounter.go):
//
//	{"attachmentID":"csi-…","driverName":"ebs.csi.aws.com","nodeName":"n","specVolID":"pvc-…","volumeHandle":"vol-…",
//	 "volumeLifecycleMode":"Persistent"}
//
// After a restart kubelet knows only from this file that the volume has to be unpublished, unstaged and detached. So it
// is removed only when no driver is left that could do that, and nothing is left to do.
const (
	csiVolumes = "volumes/kubernetes.io~csi/"
	noteName   = "vol_data.json"
)

// volumeNote is the content of a volume's vol_data.json.
type volumeNote struct {
	Spec   string `json:"specVolID"` // name of the PersistentVolume, or of an inline volume
	Handle string `json:"volumeHandle"`
	Driver string `json:"driverName"`

	file mutate.FileID
}

// IsVolumeNote reports whether a path in a pod's directory is that of a volume note.
func IsVolumeNote(name string) bool {
	ok, _ := path.Match(csiVolumes+"*/"+noteName, name)
	return ok
}

// readVolumeNote reads the note of a volume, a path in the pod's directory.
func (w *Evidence) readVolumeNote(ctx context.Context, uid, name string) (volumeNote, error) {
	file, err := w.Mutator.ReadNote(ctx, uid, name)
	if err != nil {
		return volumeNote{}, err
	}
	note, err := parseVolumeNote(file.Content, path.Base(path.Dir(name)))
	note.file = file.File
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return note, err
}

// parseVolumeNote parses the note in the directory of a volume. An incomplete note, or one of another volume, is an
// error.
func parseVolumeNote(data []byte, volume string) (volumeNote, error) {
	var note volumeNote
	if err := json.Unmarshal(data, &note); err != nil {
		return volumeNote{}, err
	}
	switch {
	case !hostkubelet.IsCSIDriverName(note.Driver):
		return volumeNote{}, fmt.Errorf("driver name %q", note.Driver)
	case note.Handle == "":
		return volumeNote{}, errors.New("it has no volume handle")
	case escapeVolume(note.Spec) != volume:
		return volumeNote{}, fmt.Errorf("it is for volume %q, in the directory of %q", note.Spec, volume)
	}
	return note, nil
}

// escapeVolume returns the name of the directory that kubelet uses for a volume.
func escapeVolume(name string) string { return strings.ReplaceAll(name, "/", "~") }

// VolumeNeeded returns why the note of a volume has to stay, or "".
func (w *Evidence) VolumeNeeded(ctx context.Context, uid string, entry mutate.Entry) string {
	note, err := w.readVolumeNote(ctx, uid, entry.Path)
	switch {
	case err != nil:
		return fmt.Sprintf("the volume of %s is not known: %v", entry.Path, err)
	case note.file != entry.File:
		return fmt.Sprintf("%s was rewritten", entry.Path)
	}
	if why := w.notGone(ctx, note.Driver); why != "" {
		return fmt.Sprintf("kubelet needs %s to let CSI driver %s unpublish the volume: %s", entry.Path,
			note.Driver, why)
	}
	if why := w.staged(ctx, note); why != "" {
		return fmt.Sprintf("%s: volume %s of CSI driver %s is still staged on this node: %s", entry.Path, note.Handle,
			note.Driver, why)
	}
	why := w.inUse(ctx, note)
	if why == "" {
		why = w.kubeletWorking(ctx)
	}
	if why != "" {
		why = fmt.Sprintf("%s: %s", entry.Path, why)
	}
	return why
}

// IsMount reports whether a mount was made by a CSI driver for kubelet.
func IsMount(o object.Assessment) bool {
	return strings.Contains(o.Identity.Mount.Point, "/pods/"+o.Pod.UID+"/"+csiVolumes)
}

// MountOwned returns why a CSI mount belongs to its driver: that is unknown or not proven to be gone.
func (w *Evidence) MountOwned(ctx context.Context, o object.Assessment) string {
	_, rest, _ := strings.Cut(o.Identity.Mount.Point, "/pods/"+o.Pod.UID+"/"+csiVolumes)
	volume, _, _ := strings.Cut(rest, "/")
	note, err := w.readVolumeNote(ctx, o.Pod.UID, csiVolumes+volume+"/"+noteName)
	if err != nil {
		return fmt.Sprintf("the CSI driver of the volume is not known: %v", err)
	}
	if why := w.notGone(ctx, note.Driver); why != "" {
		return fmt.Sprintf("CSI driver %s owns the volume: %s", note.Driver, why)
	}
	return ""
}

// staged returns the path at which a volume is staged on this node, by kubelet's directories and the mount table.
func (w *Evidence) staged(ctx context.Context, note volumeNote) string {
	tree, err := w.Mutator.Plugins(ctx, path.Join(w.Host.Paths.KubeletRoot, "plugins"))
	if err != nil {
		return fmt.Sprintf("not known: %v", err)
	}
	mounts, err := mount.Table(w.Host)
	if err != nil {
		return fmt.Sprintf("not known: %v", err)
	}
	names := make([]string, 0, len(tree)+len(mounts))
	for _, entry := range tree {
		names = append(names, "plugins/"+entry.Path)
	}
	for _, m := range mounts {
		names = append(names, m.Point)
	}
	return stagedAt(names, note)
}

// stagedAt finds a path of a staged volume (pkg/volume/csi, csi_attacher.go and csi_block.go):
//
//	plugins/kubernetes.io/csi/<driver>/<sha256 of the handle>/globalmount
//	plugins/kubernetes.io/csi/pv/<volume>/globalmount, before 1.24
//	plugins/kubernetes.io/csi/volumeDevices/{staging,publish}/<volume>, and volumeDevices/<volume>/{dev,data}
//
// The driver in the path is ignored, as it may be spelled in two ways for the same volume. The directory alone is
// enough: kubelet removes it last, when NodeUnstageVolume is done.
func stagedAt(names []string, note volumeNote) string {
	handle, name := volume.HandleSum(note.Handle), escapeVolume(note.Spec)
	for _, place := range names {
		_, below, ok := strings.Cut(place, "plugins/kubernetes.io/csi/")
		if !ok {
			continue
		}
		at := append(strings.Split(below, "/"), "", "") // at least three
		switch {
		case at[1] == handle, at[0] == "pv" && at[1] == name:
			return place
		case at[0] == "volumeDevices" && (at[1] == name || at[2] == name &&
			(at[1] == "staging" || at[1] == "publish")):
			return place
		}
	}
	return ""
}

// inUse returns where the Node's status names a volume: "kubernetes.io/csi/<driver>^<handle>". The driver and the case
// of letters are ignored: a false match keeps a note, a missed one loses data.
func (w *Evidence) inUse(ctx context.Context, note volumeNote) string {
	node, err := host.Ask(ctx, "apiserver", w.Host.Cluster.Node)
	if err != nil {
		return fmt.Sprintf("whether the volume is in use is not known: %v", err)
	}
	end := "^" + note.Handle
	same := func(name corev1.UniqueVolumeName) bool {
		return len(name) >= len(end) && strings.EqualFold(string(name[len(name)-len(end):]), end)
	}
	if i := slices.IndexFunc(node.Status.VolumesInUse, same); i >= 0 {
		return fmt.Sprintf("the Node's volumesInUse names %s", node.Status.VolumesInUse[i])
	}
	for _, volume := range node.Status.VolumesAttached {
		if same(volume.Name) {
			return fmt.Sprintf("the Node's volumesAttached names %s", volume.Name)
		}
	}
	return ""
}

// kubeletWorking returns why kubelet may still work on a pod that is no longer wanted: it may be this volume's pod,
// waiting for its driver. kubelet_working_pods has the labels lifecycle (sync, terminating, terminated) and config
// (desired, orphan, runtime_only); desired pods are in its /pods.
func (w *Evidence) kubeletWorking(ctx context.Context) string {
	const unknown = "whether kubelet still works on its pod is not known: "
	if w.Host.Kubelet.Metric == nil {
		return unknown + "its metrics are not configured"
	}
	samples, err := w.Host.Kubelet.Metric(ctx, "kubelet_working_pods")
	if err != nil {
		return unknown + err.Error()
	}
	if len(samples) == 0 {
		return unknown + "it has no metric kubelet_working_pods"
	}
	for labels, count := range samples {
		if count > 0 && !strings.Contains(labels, `config="desired"`) {
			return fmt.Sprintf("kubelet still works on %g pods that are no longer wanted {%s}: one may have this volume",
				count, labels)
		}
	}
	return ""
}
