package kinds

import (
	"path"
	"strconv"

	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// explainLogs adds to the logs of suspects how much they take. Kubelet's layout has two levels, and no more is read:
//
//	/var/log/pods/<namespace>_<name>_<uid>/<container>/<restarts>.log*
func explainLogs(scan *hostscan.Scan, suspects []*object.Object) {
	const maxSuspects = 64
	mounts, err := scan.Mounts()
	if err != nil {
		return // a lister has reported it
	}
	mounted := make(map[string]bool, len(mounts))
	for _, m := range mounts {
		mounted[m.Point] = true
	}
	for _, o := range suspects[:min(len(suspects), maxSuspects)] {
		if bytes, ok := logBytes(scan, o.ID, mounted); ok {
			o.Facts = object.Facts("bytes", strconv.FormatUint(bytes, 10))
		}
	}
}

// logBytes adds up the files in the directories of a directory; not ok where one cannot be read, has too many entries or
// something mounted on it.
func logBytes(scan *hostscan.Scan, dir string, mounted map[string]bool) (bytes uint64, ok bool) {
	const maxContainers, maxLogs = 64, 256
	if mounted[dir] {
		return 0, false
	}
	containers, _, err := scan.Host.Files.ReadEntries(dir, maxContainers)
	if err != nil {
		return 0, false
	}
	for _, container := range containers {
		below := path.Join(dir, container.Name)
		if mounted[below] {
			return 0, false
		}
		if !container.IsDir() {
			continue
		}
		files, _, err := scan.Host.Files.ReadEntries(below, maxLogs)
		if err != nil {
			return 0, false
		}
		for _, file := range files {
			name := path.Join(below, file.Name)
			if !file.IsFile() || mounted[name] {
				continue
			}
			if stat, err := scan.Host.Files.Stat(name); err == nil && stat.IsFile() {
				bytes += stat.Size
			}
		}
	}
	return bytes, true
}
