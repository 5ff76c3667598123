package csiregistration

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// The kinds of subjects.
const (
	csiDriverKind    = "csi-driver"
	pluginSocketKind = "plugin-socket" // it does not answer and its driver is not known
)

// csiExpectation holds the drivers that should be here, by name.
type csiExpectation map[string]*csiDriver

// driver returns the driver of a name, and adds a reason why it should be here.
func (e csiExpectation) driver(name, because string) *csiDriver {
	d, ok := e[name]
	if !ok {
		d = &csiDriver{Name: name, Kind: csiDriverKind}
		e[name] = d
	}
	if !slices.Contains(d.Because, because) {
		d.Because = append(d.Because, because)
	}
	return d
}

// expect returns the drivers that should be here, with their answers. It reads only the folders of drivers that are
// known from mounts alone.
func (c *csiCheck) expect(h *host.Host, sockets []kubelet.PluginSocket, now finding.Timestamp) []csiDriver {
	e := csiExpectation{}
	for _, name := range c.settings.Drivers {
		e.driver(name, "the configuration lists it").Listed = true
	}
	for _, name := range slices.Sorted(maps.Keys(c.history.Drivers)) {
		e.driver(name, "it was in the node's CSINode before").Here = true
	}
	for name, pods := range c.pods.usedBy {
		d := e.driver(name, "pods use volumes of it")
		d.UsedBy, d.Mounted = pods, c.pods.mounted[name]
	}
	for _, pod := range csiPodsOf(c.pods.pods, h.Paths.KubeletRoot, now.Wall) {
		if !pod.Sure && c.notCSI(h, pod.Driver) {
			continue
		}
		d := e.driver(c.nameOf(pod), "its pod "+pod.Name+" runs here")
		d.Pods = append(d.Pods, pod)
		d.Critical = d.Critical || pod.Critical
	}
	c.attach(e, sockets)
	for _, name := range c.settings.Ignore {
		delete(e, name)
	}
	drivers := make([]csiDriver, 0, len(e))
	for _, name := range slices.Sorted(maps.Keys(e)) {
		drivers = append(drivers, *e[name])
	}
	return drivers
}

// attach adds each socket to its driver: first those that name it, then those that do not answer, by the history and by
// the registrar's convention <driver>-reg.sock.
func (c *csiCheck) attach(e csiExpectation, sockets []kubelet.PluginSocket) {
	for _, socket := range sockets {
		if a := c.answers[socket.Path]; a.csi() {
			d := e.driver(a.Info.Name, "it has a registration socket")
			d.Here = true
			d.answered(socket, a)
		}
	}
	for _, socket := range sockets {
		a := c.answers[socket.Path]
		if a.InfoErr == nil {
			continue
		}
		name, remembered := c.history.nameOfSocket(socket.Path)
		if !remembered {
			name = strings.TrimSuffix(path.Base(socket.Path), "-reg.sock")
		}
		d, known := e[name]
		switch {
		case known && d.Socket == "":
			d.answered(socket, a)
		case known: // another socket of this driver answers
		default: // of a CSI driver, or of a device or DRA plugin: named by its socket
			unknown := &csiDriver{Name: socket.Path, Kind: pluginSocketKind,
				Because: []string{"it has a registration socket"}}
			unknown.answered(socket, a)
			e[socket.Path] = unknown
		}
	}
}

func (d *csiDriver) answered(socket kubelet.PluginSocket, a csiAnswer) {
	d.Socket, d.Changed, d.Info, d.InfoErr = socket.Path, socket.Changed, a.Info, a.InfoErr
	d.Endpoint, d.Ready, d.ProbeErr = a.Info.Endpoint, a.Ready, a.ProbeErr
}

// nameOf returns the name of the driver that a pod runs: from its socket's present or last answer, or else the name of
// its folder.
func (c *csiCheck) nameOf(pod csiPod) string {
	for _, a := range c.answers {
		if a.csi() && (a.Info.Endpoint == pod.Endpoint || folderOf(a.Info.Endpoint) == pod.Driver) {
			return a.Info.Name
		}
	}
	for name, d := range c.history.Drivers {
		if d.Folder == pod.Driver {
			return name
		}
	}
	return pod.Driver
}

// notCSI reports whether the folder of a plugin belongs to another type of plugin.
func (c *csiCheck) notCSI(h *host.Host, folder string) bool {
	for _, a := range c.answers {
		if a.InfoErr == nil && !a.csi() && (a.Info.Name == folder || folderOf(a.Info.Endpoint) == folder) {
			return true
		}
	}
	// an absent folder may become CSI's
	names, _ := h.Files.List(filepath.Join(h.Paths.KubeletRoot, "plugins", folder))
	return slices.ContainsFunc(names, func(name string) bool {
		return strings.HasPrefix(name, "dra") && strings.HasSuffix(name, ".sock")
	})
}

// folderOf returns the name of the folder that a socket is in.
func folderOf(socket string) string { return path.Base(path.Dir(socket)) }

// csiVolumesUsed returns, by driver, the pods (namespace/name) that have volumes of it: inline volumes by their spec,
// claims by the file that kubelet writes beside the mount before it calls the driver. A claim whose driver kubelet did
// not know leaves no such file. mounted are the drivers that more than a specification shows: by such a file, or by a
// started container of the pod, since kubelet mounts all volumes before.
//
//	<kubelet root>/pods/<uid>/volumes/kubernetes.io~csi/<volume>/vol_data.json
//	<kubelet root>/plugins/kubernetes.io/csi/volumeDevices/<volume>/data/vol_data.json   of raw block volumes
func csiVolumesUsed(h *host.Host, pods []corev1.Pod) (used map[string][]string, mounted map[string]bool) {
	used, mounted = map[string][]string{}, map[string]bool{}
	for i := range pods {
		pod := &pods[i]
		if checkkit.PodFinished(pod) {
			continue
		}
		var drivers []string
		claims, started := false, hasStarted(pod)
		for _, volume := range pod.Spec.Volumes {
			claims = claims || volume.PersistentVolumeClaim != nil || volume.Ephemeral != nil
			if volume.CSI != nil {
				drivers = append(drivers, volume.CSI.Driver)
				mounted[volume.CSI.Driver] = mounted[volume.CSI.Driver] || started
			}
		}
		if claims {
			for _, driver := range claimedDrivers(h, host.NodePodUID(pod)) {
				drivers, mounted[driver] = append(drivers, driver), true
			}
		}
		slices.Sort(drivers)
		for _, driver := range slices.Compact(drivers) {
			used[driver] = append(used[driver], pod.Namespace+"/"+pod.Name)
		}
	}
	return used, mounted
}

// hasStarted reports whether a container of the pod runs or has run.
func hasStarted(pod *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses),
		func(c corev1.ContainerStatus) bool {
			return c.State.Running != nil || c.State.Terminated != nil || c.LastTerminationState.Terminated != nil
		})
}

// claimedDrivers reads kubelet's files about the volumes of a pod and ignores unreadable ones.
func claimedDrivers(h *host.Host, uid string) []string {
	if !host.IsPodUID(uid) {
		return nil
	}
	root, pod := h.Paths.KubeletRoot, filepath.Join(h.Paths.KubeletRoot, "pods", uid)
	var notes []string
	mounts := filepath.Join(pod, "volumes", "kubernetes.io~csi")
	names, _ := h.Files.List(mounts)
	for _, name := range names {
		notes = append(notes, filepath.Join(mounts, name, "vol_data.json"))
	}
	names, _ = h.Files.List(filepath.Join(pod, "volumeDevices", "kubernetes.io~csi"))
	for _, name := range names {
		notes = append(notes, filepath.Join(root, "plugins/kubernetes.io/csi/volumeDevices", name, "data",
			"vol_data.json"))
	}
	var drivers []string
	for _, note := range notes {
		data, err := h.Files.Read(note)
		if err != nil {
			continue
		}
		if driver, err := parseVolumeData(data); err == nil {
			drivers = append(drivers, driver)
		}
	}
	return drivers
}

// parseVolumeData returns the driver named in a vol_data.json.
func parseVolumeData(data []byte) (string, error) {
	var note struct {
		DriverName string `json:"driverName"`
	}
	if err := json.Unmarshal(data, &note); err != nil {
		return "", fmt.Errorf("parse vol_data.json: %w", err)
	}
	if !kubelet.IsCSIDriverName(note.DriverName) {
		return "", fmt.Errorf("parse vol_data.json: %q cannot be a driver's name", checkkit.Sanitize(note.DriverName,
			100))
	}
	return note.DriverName, nil
}
