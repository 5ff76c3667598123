package inspect

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

func podLogsSpec() KindSpec {
	return KindSpec{
		Kind: PodLogs, List: listPodLogs,
		ReportOnly: "kubelet removes them once its garbage collection runs again; they may be all that is left to " +
			"explain what the pod did",
		What: "a directory of container logs, `/var/log/pods/<namespace>_<name>_<uid>`",
		Harm: "disk space",
	}
}

// listPodLogs lists kubelet's directories of container logs (pkg/kubelet/kuberuntime/helpers.go:
// BuildPodLogsDirectory). Their content is not read.
func listPodLogs(_ context.Context, scan *Scan) ([]Object, error) {
	dir := scan.Host.Paths.PodLogs
	if dir == "" {
		return nil, nil
	}
	entries, device, err := scan.Host.Files.Entries(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // kubelet creates it with its first pod
	}
	if err != nil {
		return nil, err
	}
	objects := make([]Object, 0, len(entries))
	for _, entry := range entries {
		o := Object{Kind: PodLogs, ID: path.Join(dir, entry.Name), Identity: Identity{
			"device": hosterr.Device(device), "inode": strconv.FormatUint(entry.Inode, 10)}}
		if pod, ok := podOfLogs(entry.Name); ok {
			o.Pod = pod
		} else {
			o.Foreign = "its name is not that of a pod's logs"
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// podOfLogs returns the pod that a directory of logs is named after.
func podOfLogs(name string) (Pod, bool) {
	parts := strings.Split(name, "_") // neither a namespace nor a name contains one
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || !host.IsPodUID(parts[2]) {
		return Pod{}, false
	}
	return Pod{Namespace: parts[0], Name: parts[1], UID: parts[2]}, true
}
