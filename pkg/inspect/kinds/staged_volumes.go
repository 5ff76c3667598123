package kinds

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/volume"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

func stagedVolumeSpec() Spec {
	return Spec{
		Kind: object.StagedVolume, List: listStagedVolumes, InUse: (*witness.Inventory).VolumeInUse,
		ReportOnly: "only its driver can unstage it without loss, and a node may not read whether the volume is attached " +
			"elsewhere by now: let kubelet do it, by a pod that uses the volume on this node and is deleted again",
		Unused: "no pod on this node has a directory or a mount of the volume, and none waits for one",
		What:   "a volume that is staged below `<kubelet root>/plugins/kubernetes.io` and that no pod here uses",
		Harm:   "the volume stays attached, and cannot be detached or used on another node",
	}
}

// listStagedVolumes lists the volumes that kubelet has staged for all pods of the node: those of CSI drivers by their
// directories, those of in-tree plugins by their mounts. One belongs to the pod that has a directory or a mount of it.
// If several pods have, or it is mounted elsewhere, it is in use; if none has, its pod is unknown.
func listStagedVolumes(_ context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	mounts, err := scan.Mounts()
	if err != nil {
		return nil, err
	}
	private, err := scan.KubeletMounts()
	if err != nil {
		return nil, err
	}
	view := stagedView{plugins: path.Join(scan.Host.Paths.KubeletRoot, "plugins/kubernetes.io"),
		mounts: map[string][]mount.Mount{}}
	known := map[int]bool{}
	for _, m := range append(slices.Clone(mounts), private...) {
		if known[m.ID] {
			continue
		}
		known[m.ID] = true
		view.mounts[m.Device()] = append(view.mounts[m.Device()], m)
		if mount.Below(m.Point, view.plugins) {
			view.staged = append(view.staged, m)
		}
	}
	found, err := volume.StagedVolumes(scan.Host)
	if len(found) > 0 {
		var usedErr error
		view.used, usedErr = volume.UsedByPods(scan.Host)
		if usedErr != nil {
			view.used.Unread = append(view.used.Unread, usedErr.Error())
		}
	}
	objects := make([]object.Object, 0, len(found))
	for i := range found {
		objects = append(objects, view.csi(scan, &found[i]))
	}
	return append(objects, view.inTree(scan)...), err
}

// stagedView shows the users of staged volumes.
type stagedView struct {
	plugins string                   // kubelet's directory of plugins
	mounts  map[string][]mount.Mount // by device
	staged  []mount.Mount            // those below plugins
	used    volume.Used
}

// csi returns the object for a volume of a CSI driver.
func (v *stagedView) csi(scan *hostscan.Scan, s *volume.Staged) object.Object {
	o := object.Object{Kind: object.StagedVolume, ID: s.Path,
		Identity: fileIdentity(s.Device, s.Inode),
		Facts: object.Facts("driver", s.Note.Driver, "volumeHandle", s.Note.Handle, "volume", s.Volume,
			"block", strconv.FormatBool(s.Block))}
	sum := s.Sum
	if s.Note.Handle != "" {
		sum = volume.HandleSum(s.Note.Handle)
	}
	if sum != "" {
		o.Facts[witness.HandleSum] = sum
	}
	if s.Err != nil && !errors.Is(s.Err, fs.ErrNotExist) {
		o.Facts["malformed"] = s.Err.Error()
	}
	users := slices.Concat(s.Pods, v.used.Handles[s.Sum], v.used.Handles[sum], v.used.Volumes[s.Volume])
	elsewhere := ""
	for _, m := range v.staged {
		if !strings.HasPrefix(m.Point, s.Path) || !mount.Below(m.Point, s.Path) {
			continue
		}
		o.Facts["mounted"], o.Facts["source"], o.Facts["type"] = m.Point, m.Source, m.FSType
		if uid := path.Base(m.Point); host.IsPodUID(uid) {
			users = append(users, uid)
		}
		pods, point := v.alsoAt(scan, m)
		users, elsewhere = append(users, pods...), elsewhere+point
	}
	attachUsers(&o, users, elsewhere)
	doubtUnused(&o, v.used)
	return o
}

// inTree returns objects for the mounts of in-tree plugins: <plugin>/mounts/…, <plugin>/volumeDevices/<volume>/<pod UID>.
func (v *stagedView) inTree(scan *hostscan.Scan) []object.Object {
	var objects []object.Object
	for _, m := range v.staged {
		if mount.Below(m.Point, path.Join(v.plugins, "csi")) || m.Point == v.plugins {
			continue
		}
		o := object.Object{Kind: object.StagedVolume, ID: m.Point,
			Identity: object.Identity{Mount: object.MountID{ID: m.ID, Device: m.Device(),
				Root: m.Root}}, Facts: object.Facts("mounted", m.Point, "source", m.Source, "type", m.FSType)}
		users, elsewhere := v.alsoAt(scan, m)
		if uid := path.Base(m.Point); host.IsPodUID(uid) {
			users = append(users, uid)
		}
		attachUsers(&o, users, elsewhere)
		objects = append(objects, o)
	}
	return objects
}

// alsoAt returns the pods below whose directories the content of a staged mount is mounted too, and another mount point
// outside pods; kubelet's own in plugins do not count.
func (v *stagedView) alsoAt(scan *hostscan.Scan, staged mount.Mount) (users []string, elsewhere string) {
	return mountedBy(scan, v.mounts[staged.Device()], func(m mount.Mount) bool {
		return m.ID != staged.ID && mount.Below(m.Root, staged.Root) && !mount.Below(m.Point, v.plugins)
	})
}

// mountedBy returns the pods below whose directories some mounts are, and the last one that is outside pods.
func mountedBy(
	scan *hostscan.Scan, mounts []mount.Mount, counts func(mount.Mount) bool) (users []string, elsewhere string) {
	for _, m := range mounts {
		if !counts(m) {
			continue
		}
		if uid, ok := scan.Host.Paths.PodOfPath(m.Point); ok {
			users = append(users, uid)
		} else {
			elsewhere = m.Point
		}
	}
	return users, elsewhere
}

// attachUsers sets the owner of an object that pods may share, or its user.
func attachUsers(o *object.Object, users []string, elsewhere string) {
	slices.Sort(users)
	switch users = slices.Compact(users); {
	case elsewhere != "":
		o.InUse = "it is used by " + elsewhere
	case len(users) == 1:
		o.Pod.UID = users[0]
	case len(users) > 1:
		o.InUse = fmt.Sprintf("%d pods have a directory or a mount of it, %s and %s among them", len(users), users[0],
			users[1])
	}
}

// doubtUnused puts an unused object in doubt if the volumes of a pod could not be read.
func doubtUnused(o *object.Object, used volume.Used) {
	if len(used.Unread) > 0 && o.Pod.UID == "" && o.InUse == "" {
		o.Doubt = "volumes of a pod are not known: " + strings.Join(used.Unread, "; ")
	}
}
