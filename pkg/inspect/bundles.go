package inspect

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	hostcri "github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/mount"
)

func rootfsSpec() KindSpec {
	return KindSpec{
		Kind: Rootfs, List: listRootfs, GoneFrom: ofSandbox,
		ReportOnly: "containerd removes it once its holder is gone; to remove it beside a mount destroys data",
		What: "a container's bundle, `<containerd state>/io.containerd.runtime.v2.task/k8s.io/<id>`, with its root " +
			"filesystem mounted on `rootfs`",
		Harm: "keeps the snapshot, and the shim that waits for it; thousands of them slow down every mount",
	}
}

func sandboxDirectorySpec() KindSpec {
	return KindSpec{
		Kind: SandboxDirectory, List: listSandboxDirectories, GoneFrom: ofSandbox,
		ReportOnly: "containerd removes it when it starts",
		What: "a sandbox's directory of containerd's CRI plugin, `io.containerd.grpc.v1.cri/sandboxes/<id>` below " +
			"its root or state, with `shm` mounted",
		Harm: "memory, as long as something is in its shm",
	}
}

// bundle is a container's directory of the runtime: config.json, the address of the shim, and rootfs, on which its root
// filesystem is mounted. Before it removes one, containerd puts a dot before its name, and does not look at those again
// (core/runtime/v2/bundle.go: atomicDelete).
type bundle struct {
	host.Entry

	dir    string
	device uint64
	id     string
	rootfs []mount.Mount // in the order of mounting
}

// readBundles lists the bundles of containerd's namespace k8s.io. None of them is opened.
func (s *Scan) readBundles() ([]bundle, error) {
	if s.Host.Paths.ContainerdState == "" {
		return nil, nil
	}
	dir := path.Join(s.Host.Paths.ContainerdState, "io.containerd.runtime.v2.task", hostcri.Namespace)
	entries, device, err := s.directories(dir)
	if err != nil || len(entries) == 0 {
		return nil, err
	}
	mounts, err := s.mounts()
	if err != nil {
		return nil, err
	}
	mounted := make(map[string][]mount.Mount)
	for _, m := range mounts {
		if path.Base(m.Point) == "rootfs" && path.Dir(path.Dir(m.Point)) == dir {
			mounted[path.Base(path.Dir(m.Point))] = append(mounted[path.Base(path.Dir(m.Point))], m)
		}
	}
	bundles := make([]bundle, 0, len(entries))
	for _, entry := range entries {
		bundles = append(bundles, bundle{Entry: entry, dir: path.Join(dir, entry.Name), device: device,
			id: strings.TrimPrefix(entry.Name, "."), rootfs: mounted[entry.Name]})
	}
	return bundles, nil
}

// directories lists the directories in a directory of containerd. One that does not exist is empty.
func (s *Scan) directories(dir string) (entries []host.Entry, device uint64, err error) {
	entries, device, err = s.Host.Files.Entries(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	return slices.DeleteFunc(entries, func(e host.Entry) bool { return !e.IsDir() }), device, err
}

// listRootfs lists the bundles of containers with their root filesystems.
func listRootfs(_ context.Context, scan *Scan) ([]Object, error) {
	bundles, err := scan.bundles()
	if err != nil {
		return nil, err
	}
	objects := make([]Object, 0, len(bundles))
	for _, b := range bundles {
		o := Object{
			Kind: Rootfs, ID: b.dir, ContainerID: b.id,
			Identity: Identity{"device": hosterr.Device(b.device), "inode": strconv.FormatUint(b.Inode, 10)},
			Facts:    facts("mounts", strconv.Itoa(len(b.rootfs))),
		}
		if n := len(b.rootfs); n > 0 {
			o.Identity["mount"] = strconv.Itoa(b.rootfs[n-1].ID)
			o.Facts["type"] = b.rootfs[n-1].FSType
		}
		if b.id != b.Name {
			o.Facts["state"] = "its removal was interrupted: containerd does not look at it again"
		}
		if !host.IsContainerID(b.id) {
			o.Foreign = "not created by a CRI runtime: its ID has another format"
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// listSandboxDirectories lists the directories that containerd's CRI plugin keeps of sandboxes: hosts and resolv.conf
// below its root, shm below its state.
func listSandboxDirectories(_ context.Context, scan *Scan) ([]Object, error) {
	mounts, err := scan.mounts()
	if err != nil {
		return nil, err
	}
	mounted := make(map[string]int)
	for _, m := range mounts {
		mounted[m.Point]++
	}
	var objects []Object
	var failures []error
	for _, base := range []string{scan.Host.Paths.ContainerdState, scan.Host.Paths.ContainerdRoot} {
		dir := path.Join(base, "io.containerd.grpc.v1.cri", "sandboxes")
		if base == "" || mounted[dir] > 0 {
			continue // not configured, or something else is mounted over it
		}
		entries, device, err := scan.directories(dir)
		failures = append(failures, err)
		for _, entry := range entries {
			o := Object{
				Kind: SandboxDirectory, ID: path.Join(dir, entry.Name), SandboxID: entry.Name,
				Identity: Identity{"device": hosterr.Device(device), "inode": strconv.FormatUint(entry.Inode, 10)},
				Facts:    facts("shmMounts", strconv.Itoa(mounted[path.Join(dir, entry.Name, "shm")])),
			}
			if !host.IsContainerID(entry.Name) {
				o.Foreign = "its name is not the ID of a sandbox"
			}
			objects = append(objects, o)
		}
	}
	return objects, errors.Join(failures...)
}
