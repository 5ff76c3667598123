package inspect

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strconv"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

func podDirectorySpec() KindSpec {
	return KindSpec{
		Kind: PodDirectory, List: listPodDirectories,
		What: "kubelet's directory of a pod, `<kubelet root>/pods/<uid>`",
		Harm: "kubelet tries to remove it every two seconds and logs an error each time; data may fill the disk",
	}
}

// listPodDirectories lists <kubelet root>/pods/*. A directory with something mounted on it is described by its parent's
// listing alone; the mount is not accessed.
func listPodDirectories(_ context.Context, scan *Scan) ([]Object, error) {
	dir := path.Join(scan.Host.Paths.KubeletRoot, "pods")
	entries, device, err := scan.Host.Files.Entries(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // kubelet creates it with its first pod
	}
	if err != nil {
		return nil, err
	}
	mounts, err := scan.mounts()
	if err != nil {
		return nil, err
	}
	mounted := make(map[string]bool)
	for _, m := range mounts {
		mounted[m.Point] = true
	}
	objects := make([]Object, 0, len(entries))
	for _, entry := range entries {
		name := path.Join(dir, entry.Name)
		o := Object{Kind: PodDirectory, ID: name, Pod: Pod{UID: entry.Name}}
		stat := host.FileStat{Device: device, Inode: entry.Inode}
		if !mounted[name] {
			stat, err = scan.Host.Files.Stat(name)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return objects, err
			}
		}
		o.Identity = Identity{"device": hosterr.Device(stat.Device), "inode": strconv.FormatUint(stat.Inode, 10)}
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
