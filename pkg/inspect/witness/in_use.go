package witness

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/volume"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// HandleSum is the fact that identifies the volume of a driver: see volume.HandleSum.
const HandleSum = "handleSHA256"

// VolumeInUse returns why a staged volume is not a leftover, by facts that only kubelet and the Node have. The volume
// may be being staged for a pod that has not started, which takes as long as a filesystem check; the pod's claims do
// not name the volume.
func (t *Inventory) VolumeInUse(o *object.Object) string {
	for _, name := range t.Cluster.VolumesInUse {
		_, handle, ok := strings.Cut(name, "^") // kubernetes.io/csi/<driver>^<handle>
		if ok && handle != "" && (volume.HandleSum(handle) == o.Facts[HandleSum] ||
			handle == o.Facts["volumeHandle"] ||
			o.Kind == object.StorageSession && strings.Contains(handle, o.Facts["volume"])) {
			return "the Node's volumesInUse names " + name
		}
	}
	for _, pod := range t.Kubelet.Pods {
		if pod.Mounting {
			return fmt.Sprintf("pod %s/%s has not started, and may be waiting for it", pod.Namespace, pod.Name)
		}
	}
	return ""
}

// PluginInUse returns the pod that may own the plugin and be about to listen again: one that mounts the directory of
// its driver, or one that is not ready and mounts the directory of the socket.
func (t *Inventory) PluginInUse(o *object.Object) string {
	for _, pod := range t.Kubelet.Pods {
		if pod.Ended {
			continue
		}
		for _, dir := range pod.HostPaths {
			driver := path.Base(path.Dir(path.Clean(dir))) == "plugins"
			registers := driver && strings.HasPrefix(path.Base(o.ID), path.Base(dir))
			below := mount.Below(o.ID, dir) || mount.Below(o.Facts["directory"], dir)
			if registers || below && (driver || !pod.Ready) {
				return fmt.Sprintf("pod %s/%s mounts %s, and may be its plugin's", pod.Namespace, pod.Name, dir)
			}
		}
	}
	return ""
}

// usualKubeletRoot is the path that pods name in their volumes even if it is a link to kubelet's root.
const usualKubeletRoot = "/var/lib/kubelet"

// FollowHostPaths adds the link targets of the directories that pods mount, if there is a socket that may be one of
// their plugins'. Symbolic links are read only on the filesystems that kubelet's own directory needs: a pod may mount a
// directory below a hanging mount.
func (t *Inventory) FollowHostPaths(ctx context.Context, scan *hostscan.Scan, objects []object.Object) {
	unused := func(o object.Object) bool { return o.Kind == object.PluginSocket && o.Foreign == "" }
	if !slices.ContainsFunc(objects, unused) {
		return
	}
	pods, err := hostscan.Within(ctx, scan.Ends, hostscan.Owners, "links in the paths of pods",
		func(context.Context) (map[string]PodFact, error) {
			table, err := scan.Mounts()
			on := map[int]bool{}
			for _, root := range []string{scan.Host.Paths.KubeletRoot, path.Dir(scan.Host.Paths.PluginRegistry),
				usualKubeletRoot} {
				for dir := root; ; dir = path.Dir(dir) {
					m, _ := mount.Around(table, dir)
					if on[m.ID] = true; dir == path.Dir(dir) {
						break
					}
				}
			}
			pods := maps.Clone(t.Kubelet.Pods)
			for uid, pod := range pods {
				all := slices.Clone(pod.HostPaths)
				for _, dir := range pod.HostPaths {
					if leads := mount.Follow(scan.Host.Files, table, on, dir); leads != dir {
						all = append(all, leads)
					}
				}
				pod.HostPaths = all
				pods[uid] = pod
			}
			return pods, err
		})
	if err == nil {
		t.Kubelet.Pods = pods
		return
	}
	for i := range objects {
		if unused(objects[i]) {
			objects[i].Doubt = err.Error()
		}
	}
}
