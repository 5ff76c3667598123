package kinds

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

func podLogsSpec() Spec {
	return Spec{
		Kind: object.PodLogs, List: listPodLogs, OptIn: true, LittleHarm: true,
		MinAge: 24 * time.Hour, // collectors of logs may be behind
		What:   "a directory of container logs, `/var/log/pods/<namespace>_<name>_<uid>`",
		Harm:   "disk space",
	}
}

// listPodLogs lists kubelet's directories of container logs (pkg/kubelet/kuberuntime/helpers.go:
// BuildPodLogsDirectory). Their content is not read.
func listPodLogs(_ context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	dir := scan.Host.Paths.PodLogs
	if dir == "" {
		return nil, nil
	}
	entries, device, err := scan.Host.Files.Entries(dir)
	if err != nil {
		return nil, hosterr.Ignore(err, fs.ErrNotExist) // kubelet creates it with its first pod
	}
	objects := make([]object.Object, 0, len(entries))
	for _, entry := range entries {
		o := object.Object{Kind: object.PodLogs, ID: path.Join(dir, entry.Name), Identity: fileIdentity(device, entry.Inode)}
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
func podOfLogs(name string) (object.Pod, bool) {
	parts := strings.Split(name, "_") // neither a namespace nor a name contains one
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || !host.IsPodUID(parts[2]) {
		return object.Pod{}, false
	}
	return object.Pod{Namespace: parts[0], Name: parts[1], UID: parts[2]}, true
}

func logLinkSpec() Spec {
	return Spec{
		Kind: object.LogLink, List: listLogLinks, GoneFrom: ofSandbox,
		ReportOnly: "kubelet removes it once its garbage collection runs again",
		What: "a link to a container's log, `/var/log/containers/<pod>_<namespace>_<container>-<ID>.log`, whose target is " +
			"gone",
		Harm: "collectors of logs try it again and again",
	}
}

// listLogLinks lists kubelet's links to logs of containers (pkg/kubelet/kuberuntime/legacy.go: LogSymlink) whose target
// is in a removed directory of a pod's logs. The directory names the pod. Links are read, not followed; other files in
// the directory are not listed.
func listLogLinks(_ context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	const maxLinks = 16384 // a node has some hundreds
	logs := scan.Host.Paths.PodLogs
	if logs == "" {
		return nil, nil
	}
	dir := path.Join(path.Dir(logs), "containers")
	entries, device, err := scan.Host.Files.ReadEntries(dir, maxLinks)
	if err != nil {
		return nil, hosterr.Ignore(err, fs.ErrNotExist)
	}
	present := make(map[string]bool)
	names, err := scan.Host.Files.List(logs)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, name := range names {
		present[name] = true
	}
	var objects []object.Object
	for _, entry := range entries {
		container, ok := containerOfLink(entry.Name)
		if !ok {
			continue
		}
		target, err := scan.Host.Files.Link(path.Join(dir, entry.Name))
		if err != nil {
			continue // gone, or no link
		}
		of, below, _ := strings.Cut(strings.TrimPrefix(path.Clean(target), logs+"/"), "/")
		pod, ok := podOfLogs(of)
		if !ok || below == "" || present[of] {
			continue
		}
		o := object.Object{Kind: object.LogLink, ID: path.Join(dir, entry.Name), Pod: pod, Identity: fileIdentity(device, entry.Inode),
			Facts: object.Facts("target", strings.ToValidUTF8(target, "\ufffd"))}
		if host.IsContainerID(container) { // a long name is truncated, including the ID
			o.ContainerID = container
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// containerOfLink returns the container's ID, or its beginning, in the name of a link.
func containerOfLink(name string) (string, bool) {
	name, ok := strings.CutSuffix(name, ".log")
	parts := strings.Split(name, "_")
	if !ok || len(parts) != 3 || parts[0] == "" || parts[1] == "" {
		return "", false
	}
	dash := strings.LastIndexByte(parts[2], '-')
	return parts[2][dash+1:], dash > 0
}
