package kinds

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

func podDirectorySpec() Spec {
	return Spec{
		Kind: object.PodDirectory, List: listPodDirectories,
		What: "kubelet's directory of a pod, `<kubelet root>/pods/<uid>`",
		Harm: "kubelet tries to remove it every two seconds and logs an error each time; data may fill the disk",
	}
}

// listPodDirectories lists <kubelet root>/pods/*. A directory with a mount on it is described by its parent's listing
// alone; the mount is not accessed.
func listPodDirectories(_ context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	dir := path.Join(scan.Host.Paths.KubeletRoot, "pods")
	entries, device, err := scan.Host.Files.Entries(dir)
	if err != nil {
		return nil, hosterr.Ignore(err, fs.ErrNotExist) // kubelet creates it with its first pod
	}
	mounts, err := scan.Mounts()
	if err != nil {
		return nil, err
	}
	mounted := make(map[string]bool)
	for _, m := range mounts {
		mounted[m.Point] = true
	}
	objects := make([]object.Object, 0, len(entries))
	for _, entry := range entries {
		name := path.Join(dir, entry.Name)
		o := object.Object{Kind: object.PodDirectory, ID: name, Pod: object.Pod{UID: entry.Name}}
		stat := host.FileStat{Device: device, Inode: entry.Inode}
		if !mounted[name] {
			stat, err = scan.Host.Files.Stat(name)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err // never a part: directories that are missing excuse pods, see ended
			}
		}
		o.Identity = fileIdentity(stat.Device, stat.Inode)
		switch {
		case !host.IsPodUID(entry.Name):
			o.Pod.UID, o.Foreign = "", "its name is not a pod UID"
		case !mounted[name] && !stat.IsDir():
			o.Pod.UID, o.Foreign = "", "not a directory"
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// NoteRemoved lists the directories once more, after kubelet's and the apiserver's answers, if more than n suspects are
// directories. A pod whose directory has disappeared since has ended meanwhile, and kubelet has removed it, unless one
// of its processes still exists, or may. Pods that the runtime had running must have had processes. A list without most
// of kubelet's pods is not trusted.
func NoteRemoved(ctx context.Context, scan *hostscan.Scan, t *witness.Inventory, objects []object.Object,
	suspects []*object.Object, n int) {
	removed := make(map[string]bool)
	for _, o := range suspects {
		if o.Kind == object.PodDirectory {
			removed[o.Pod.UID] = true
		}
	}
	if len(removed) <= n {
		return
	}
	left, err := hostscan.Within(ctx, scan.Ends, hostscan.Apiserver, "kubelet's directories of pods",
		func(context.Context) ([]string, error) {
			return scan.Host.Files.List(path.Join(scan.Host.Paths.KubeletRoot, "pods"))
		})
	if err != nil {
		return
	}
	known := 0
	for _, uid := range left {
		delete(removed, uid)
		if witness.HasPod(t.Kubelet.Pods, uid) {
			known++
		}
	}
	if 2*known < witness.CountPods(t.Kubelet.Pods) {
		return
	}
	seen := make(map[string]bool) // pods of which processes were listed
	for i := range objects {
		if o := &objects[i]; o.Kind == object.Process && removed[o.Pod.UID] {
			seen[o.Pod.UID] = true
			if o.Doubt != "" || !processGone(o, scan.Host) {
				delete(removed, o.Pod.UID)
			}
		}
	}
	for i := range objects {
		if o := &objects[i]; (o.Kind == object.Sandbox || o.Kind == object.Container) && !o.HasEnded() && !seen[o.Pod.UID] {
			delete(removed, o.Pod.UID)
		}
	}
	t.Removed = removed
}

// The limits of reading below the directories of suspects.
const (
	maxPodDirectories = 64
	maxVolumes        = 256
)

// explainPodDirectories adds to suspects the first record of a CSI volume that is left in them:
//
//	<kubelet root>/pods/<uid>/volumes/kubernetes.io~csi/<volume>/vol_data.json
//
// kubelet removes directories only, and tries in vain as long as one is there (kubernetes#105536). Directories on which
// something is mounted are not opened.
func explainPodDirectories(scan *hostscan.Scan, suspects []*object.Object) {
	mounts, err := scan.Mounts()
	if err != nil {
		return // the lister has reported it
	}
	mounted := make(map[string]bool, len(mounts))
	for _, m := range mounts {
		mounted[m.Point] = true
	}
	for _, o := range suspects[:min(len(suspects), maxPodDirectories)] {
		o.Facts = object.Facts()
		explainPodDirectory(scan, o)
		if record := volumeRecord(scan, o.ID, mounted); record != "" {
			o.Facts["volumeRecord"] = record
		}
	}
}

// volumeRecord returns the path of the first record in a pod's directory, or "" if none was found.
func volumeRecord(scan *hostscan.Scan, dir string, mounted map[string]bool) string {
	csi := path.Join(dir, "volumes", "kubernetes.io~csi")
	if mounted[dir] || mounted[path.Dir(csi)] || mounted[csi] {
		return ""
	}
	volumes, _, err := scan.Host.Files.ReadEntries(csi, maxVolumes)
	if err != nil {
		return ""
	}
	for _, volume := range volumes {
		inside := path.Join(csi, volume.Name)
		if !volume.IsDir() || mounted[inside] {
			continue
		}
		entries, _, err := scan.Host.Files.ReadEntries(inside, maxVolumes)
		if err == nil && slices.ContainsFunc(entries, func(e host.Entry) bool {
			return e.Name == "vol_data.json" && e.IsFile()
		}) {
			return path.Join(inside, "vol_data.json")
		}
	}
	return ""
}

// explainPodDirectory adds the range of user IDs that the directory keeps from other pods, by kubelet's file for a pod
// with a user namespace (pkg/kubelet/userns):
//
//	{"uidMappings":[{"hostId":131072,"containerId":0,"length":65536}],"gidMappings":[…]}
func explainPodDirectory(scan *hostscan.Scan, o *object.Object) {
	const maxRange = 4 << 10
	data, err := kubelet.ReadBeneath(scan.Host.Files.Path(path.Join(scan.Host.Paths.KubeletRoot, "pods")),
		path.Join(o.Pod.UID, "userns"), maxRange)
	var file struct {
		UIDs []struct {
			First  uint32 `json:"hostId"`
			Length uint32 `json:"length"`
		} `json:"uidMappings"`
	}
	if err != nil || json.Unmarshal(data, &file) != nil || len(file.UIDs) == 0 {
		return // most pods have none
	}
	o.Facts["userIDs"] = fmt.Sprintf("%d of the node from %d on", file.UIDs[0].Length, file.UIDs[0].First)
}
