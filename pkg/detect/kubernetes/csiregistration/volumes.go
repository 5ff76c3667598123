package csiregistration

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
)

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
