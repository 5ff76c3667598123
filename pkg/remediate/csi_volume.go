package remediate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	hostkubelet "github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/mutate"
)

// Kubelet notes what a CSI volume is in <pod>/volumes/kubernetes.io~csi/<volume>/vol_data.json (pkg/volume/csi,
// csi_mounter.go):
//
//	{"attachmentID":"csi-…","driverName":"ebs.csi.aws.com","nodeName":"n","specVolID":"pvc-…","volumeHandle":"vol-…",
//	 "volumeLifecycleMode":"Persistent"}
//
// From nothing but this note it knows, after a restart, that the volume has to be unpublished, unstaged and detached.
// So it is taken away only when there is nobody left who could do that, and nothing left to be done.
const (
	csiVolumes = "volumes/kubernetes.io~csi/"
	noteName   = "vol_data.json"
)

// volumeNote is what kubelet noted of a volume.
type volumeNote struct {
	Spec   string `json:"specVolID"` // name of the PersistentVolume, or of an inline volume
	Handle string `json:"volumeHandle"`
	Driver string `json:"driverName"`

	file mutate.FileID
}

// isVolumeNote reports whether a path in a pod's directory is that of a note.
func isVolumeNote(name string) bool {
	ok, _ := path.Match(csiVolumes+"*/"+noteName, name)
	return ok
}

// readVolumeNote reads the note of a volume, a path in the pod's directory.
func readVolumeNote(ctx context.Context, t Tools, uid, name string) (volumeNote, error) {
	file, err := t.Mutator.ReadNote(ctx, uid, name)
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

// parseVolumeNote reads a note that lies in the directory of a volume. One that does not say all, or that speaks of
// another volume, says nothing.
func parseVolumeNote(data []byte, volume string) (volumeNote, error) {
	var note volumeNote
	if err := json.Unmarshal(data, &note); err != nil {
		return volumeNote{}, err
	}
	switch {
	case !hostkubelet.IsCSIDriverName(note.Driver):
		return volumeNote{}, fmt.Errorf("driver name %q", note.Driver)
	case note.Handle == "":
		return volumeNote{}, errors.New("it names no volume handle")
	case escapeVolume(note.Spec) != volume:
		return volumeNote{}, fmt.Errorf("it is of volume %q, in the directory of %q", note.Spec, volume)
	}
	return note, nil
}

// escapeVolume is how kubelet writes the name of a volume as that of a directory.
func escapeVolume(name string) string { return strings.ReplaceAll(name, "/", "~") }

// volumeNeeded returns why the note of a volume has to stay; empty when nobody needs it.
func volumeNeeded(ctx context.Context, t Tools, uid string, entry mutate.Entry) string {
	note, err := readVolumeNote(ctx, t, uid, entry.Path)
	switch {
	case err != nil:
		return fmt.Sprintf("which volume %s is of cannot be told: %v", entry.Path, err)
	case note.file != entry.File:
		return fmt.Sprintf("%s was written anew", entry.Path)
	}
	if why := t.Drivers.notGone(ctx, t, note.Driver); why != "" {
		return fmt.Sprintf("%s is how kubelet knows that CSI driver %s has to take the volume down: %s", entry.Path,
			note.Driver, why)
	}
	if why := staged(ctx, t, note); why != "" {
		return fmt.Sprintf("%s: volume %s of CSI driver %s is still staged on this node: %s", entry.Path, note.Handle,
			note.Driver, why)
	}
	node, err := askNode(ctx, t)
	if err != nil {
		return fmt.Sprintf("%s: whether the volume is in use cannot be told: %v", entry.Path, err)
	}
	if why := volumeInUse(node, note); why != "" {
		return fmt.Sprintf("%s: %s", entry.Path, why)
	}
	if why := kubeletWorking(ctx, t); why != "" {
		return fmt.Sprintf("%s: %s", entry.Path, why)
	}
	return ""
}

// staged returns where a volume is prepared for pods on this node: by kubelet's directories for it, and by the mount
// table.
func staged(ctx context.Context, t Tools, note volumeNote) string {
	tree, err := t.Mutator.Plugins(ctx, path.Join(t.Host.Paths.KubeletRoot, "plugins"))
	if err != nil {
		return fmt.Sprintf("cannot be told: %v", err)
	}
	mounts, err := mount.Table(t.Host)
	if err != nil {
		return fmt.Sprintf("cannot be told: %v", err)
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

// stagedAt finds a path that stands for a staged volume (pkg/volume/csi, csi_attacher.go and csi_block.go):
//
//	plugins/kubernetes.io/csi/<driver>/<sha256 of the handle>/globalmount
//	plugins/kubernetes.io/csi/pv/<volume>/globalmount, before 1.24
//	plugins/kubernetes.io/csi/volumeDevices/{staging,publish}/<volume>, and volumeDevices/<volume>/{dev,data}
//
// The driver in the path does not count, as a handle in two spellings of one driver would be the same volume. The
// directory alone is enough: kubelet removes it as the last of all, when NodeUnstage is done.
func stagedAt(names []string, note volumeNote) string {
	sum := sha256.Sum256([]byte(note.Handle))
	handle, volume := hex.EncodeToString(sum[:]), escapeVolume(note.Spec)
	for _, name := range names {
		_, below, ok := strings.Cut(name, "plugins/kubernetes.io/csi/")
		if !ok {
			continue
		}
		parts := strings.Split(below, "/")
		at := func(i int) string {
			if i < len(parts) {
				return parts[i]
			}
			return ""
		}
		switch {
		case at(1) == handle, at(0) == "pv" && at(1) == volume:
			return name
		case at(0) == "volumeDevices" && (at(1) == volume || at(2) == volume &&
			(at(1) == "staging" || at(1) == "publish")):
			return name
		}
	}
	return ""
}

func askNode(ctx context.Context, t Tools) (*corev1.Node, error) {
	if t.Host.Cluster.Node == nil {
		return nil, fmt.Errorf("the Node: %w", hosterr.ErrNotConfigured)
	}
	return t.Host.Cluster.Node(ctx)
}

// volumeInUse returns how the Node's status names a volume: "kubernetes.io/csi/<driver>^<handle>". The driver does not
// count, nor does the case of letters: a volume too many keeps a note, one too few loses data.
func volumeInUse(node *corev1.Node, note volumeNote) string {
	same := func(name string) bool {
		end := "^" + note.Handle
		return len(name) >= len(end) && strings.EqualFold(name[len(name)-len(end):], end)
	}
	for _, name := range node.Status.VolumesInUse {
		if same(string(name)) {
			return fmt.Sprintf("the Node's volumesInUse names %s", name)
		}
	}
	for _, volume := range node.Status.VolumesAttached {
		if same(string(volume.Name)) {
			return fmt.Sprintf("the Node's volumesAttached names %s", volume.Name)
		}
	}
	return ""
}

// kubeletWorking returns whether kubelet still works on a pod that nobody wants any more: it may be the one whose
// volume this is, and only waits for its driver. kubelet_working_pods has the labels lifecycle (sync, terminating,
// terminated) and config (desired, orphan, runtime_only); pods that are desired are in its /pods.
func kubeletWorking(ctx context.Context, t Tools) string {
	if t.Host.Kubelet.Metric == nil {
		return "whether kubelet still works on its pod cannot be told: its metrics are not configured"
	}
	samples, err := t.Host.Kubelet.Metric(ctx, "kubelet_working_pods")
	if err != nil {
		return fmt.Sprintf("whether kubelet still works on its pod cannot be told: %v", err)
	}
	if len(samples) == 0 {
		return "whether kubelet still works on its pod cannot be told: it shows no kubelet_working_pods"
	}
	for labels, count := range samples {
		if count > 0 && !strings.Contains(labels, `config="desired"`) {
			return fmt.Sprintf(
				"kubelet still works on %g pods that nobody wants any more {%s}: one may be this volume's", count,
				labels)
		}
	}
	return ""
}
