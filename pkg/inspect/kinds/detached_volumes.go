package kinds

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/volume"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

func detachedVolumeSpec(volumes *attached) Spec {
	return Spec{
		Kind: object.DetachedVolume, List: volumes.lacking,
		ReportOnly: "it may be attached to another node by now, and two nodes that write to it destroy it: " +
			"see with `kubectl get volumeattachment` where it is, end its pods here, and let its driver or an administrator " +
			"disconnect it",
		Unused: "the Node's status lacks it, so the attach-detach controller counts it as detached",
		What: "a volume of a CSI driver that is mounted or connected on this node (staged, or by iSCSI or NVMe over TCP) while " +
			"`volumesAttached` of the Node lacks it",
		Harm: "the controller may attach it to another node: then two nodes write to one filesystem",
	}
}

// lacking lists the volumes that are on the node while the Node's status does not list them as attached. Kubelet stages
// a volume only after the status lists it, and the attach-detach controller takes it from the status only after kubelet
// has unstaged it, unless it detaches by force.
//
// Many drivers never attach, and the status lacks their volumes always. So evidence is needed that this driver does:
// the status lists any of its volumes, or has listed one while this agent ran.
func (a *attached) lacking(_ context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	if scan.Host.Cluster.Node == nil {
		return nil, nil
	}
	found, err := a.onNode(scan)
	a.mu.Lock()
	defer a.mu.Unlock()
	before, now := a.lackedSince, scan.Host.Clock()
	a.lackedSince = make(map[string]finding.Timestamp)
	var objects []object.Object
	for _, o := range found {
		if !a.attaches(o) || a.lists(o) {
			continue
		}
		since, ok := before[o.ID]
		if !ok {
			since = now
		}
		a.lackedSince[o.ID] = since
		if a.answered.Boot == since.Boot && a.answered.SinceBoot > since.SinceBoot { // an older answer proves nothing
			objects = append(objects, o)
		}
	}
	return objects, err
}

// onNode lists all volumes on the node that may be attached ones. An error means that some are missing.
func (a *attached) onNode(scan *hostscan.Scan) ([]object.Object, error) {
	staged, err := volume.StagedVolumes(scan.Host)
	sessions, sessionsErr := volume.Sessions(scan.Host)
	if err == nil {
		err = sessionsErr
	}
	if len(staged)+len(sessions) == 0 {
		return nil, err
	}
	mounts, mountsErr := scan.Mounts()
	if mountsErr != nil {
		return nil, mountsErr
	}
	dir := volume.Dir(scan.Host)
	mounts = slices.DeleteFunc(slices.Clone(mounts), func(m mount.Mount) bool { return !strings.HasPrefix(m.Point, dir+"/") })
	var objects []object.Object
	for i := range staged {
		s := &staged[i]
		point := stagedMount(dir, s, mounts)
		if s.Note.Handle == "" || point == "" {
			continue
		}
		o := object.Object{Kind: object.DetachedVolume, ID: csiPlugin + s.Note.Driver + "^" + s.Note.Handle,
			Facts: object.Facts("driver", s.Note.Driver, "volumeHandle", s.Note.Handle, "mounted", point,
				"attachment", attachmentName(s.Note.Handle, s.Note.Driver, scan.Host.NodeName))}
		o.Identity = fileIdentity(s.Device, s.Inode)
		o.Identity.Names = map[string]string{"name": o.ID}
		objects = append(objects, o)
	}
	for i := range sessions {
		s := &sessions[i]
		target := strings.ToValidUTF8(s.Target, "\ufffd")
		objects = append(objects, object.Object{Kind: object.DetachedVolume, ID: s.Path,
			Identity: named("name", s.Path, "target", target),
			Facts: object.Facts("target", target, "volume", s.Volume, "state", s.State,
				"devices", strings.Join(s.Disks, " "))})
	}
	return objects, err
}

// stagedMount returns where a staged volume is mounted; empty if only its directory is left. A raw block volume is
// mounted below volumeDevices/publish.
func stagedMount(dir string, s *volume.Staged, mounts []mount.Mount) string {
	dirs := []string{s.Path}
	if s.Block {
		dirs = append(dirs, path.Join(dir, "volumeDevices/publish", s.Volume))
	}
	for _, m := range mounts {
		if slices.ContainsFunc(dirs, func(dir string) bool { return mount.Below(m.Point, dir) }) {
			return m.Point
		}
	}
	return ""
}

// csiPlugin begins the names of the volumes of CSI drivers in a Node's status: kubernetes.io/csi/<driver>^<handle>.
const csiPlugin = "kubernetes.io/csi/"

// attaches reports whether the driver of a volume is known to attach. The name of a session has no driver: the status
// must have listed that very volume.
func (a *attached) attaches(o object.Object) bool {
	plugin, _, csi := strings.Cut(o.ID, "^")
	if !csi {
		return slices.ContainsFunc(a.known, func(name string) bool { return strings.Contains(name, o.Facts["volume"]) })
	}
	return slices.ContainsFunc(a.known, func(name string) bool { return strings.HasPrefix(name, plugin+"^") })
}

// lists reports whether the last answer lists a volume as attached.
func (a *attached) lists(o object.Object) bool {
	return slices.ContainsFunc(a.names, func(name string) bool {
		return name == o.ID || o.Facts["volume"] != "" && strings.Contains(name, o.Facts["volume"])
	})
}

// maxKnown limits how many volumes are remembered as attached.
const maxKnown = 4096

// learn remembers the volumes that an answer has named, in this boot: only attachable ones are in volumesInUse too.
func (a *attached) learn(names []string) {
	for _, name := range names {
		if !slices.Contains(a.known, name) {
			a.known = append(a.known, name)
		}
	}
	a.known = a.known[max(0, len(a.known)-maxKnown):]
}
