package kinds

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
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

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

// readBundles lists the bundles of containerd's namespace k8s.io. None of their files is opened.
func readBundles(s *hostscan.Scan) ([]bundle, error) {
	if s.Host.Paths.ContainerdState == "" {
		return nil, nil
	}
	dir := path.Join(s.Host.Paths.ContainerdState, "io.containerd.runtime.v2.task", hostcri.Namespace)
	entries, device, err := directories(s, dir)
	if err != nil || len(entries) == 0 {
		return nil, err
	}
	mounts, err := s.Mounts()
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
func directories(s *hostscan.Scan, dir string) (entries []host.Entry, device uint64, err error) {
	entries, device, err = s.Host.Files.Entries(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	return slices.DeleteFunc(entries, func(e host.Entry) bool { return !e.IsDir() }), device, err
}

func rootfsSpec() Spec {
	return Spec{
		Kind: object.Rootfs, List: listRootfs, GoneFrom: ofSandbox, OptIn: true,
		What: "a container's bundle, `<containerd state>/io.containerd.runtime.v2.task/k8s.io/<id>`, with its root " +
			"filesystem mounted on `rootfs`",
		Harm: "keeps the snapshot, and the shim that waits for it; thousands of them slow down every mount",
	}
}

// listRootfs lists the bundles of containers with their root filesystems.
func listRootfs(_ context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	bundles, err := readBundles(scan)
	if err != nil {
		return nil, err
	}
	objects := make([]object.Object, 0, len(bundles))
	for _, b := range bundles {
		o := object.Object{
			Kind: object.Rootfs, ID: b.dir, ContainerID: b.id,
			Identity: fileIdentity(b.device, b.Inode),
			Facts:    object.Facts("mounts", strconv.Itoa(len(b.rootfs))),
		}
		if n := len(b.rootfs); n > 0 {
			o.Facts["mount"] = strconv.Itoa(b.rootfs[n-1].ID)
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

func sandboxDirectorySpec() Spec {
	return Spec{
		Kind: object.SandboxDirectory, List: listSandboxDirectories, GoneFrom: ofSandbox, OptIn: true,
		What: "a sandbox's directory of containerd's CRI plugin, `io.containerd.grpc.v1.cri/sandboxes/<id>` below its root " +
			"or state, with `shm` mounted",
		Harm: "memory, as long as files are in its shm",
	}
}

// listSandboxDirectories lists the directories of sandboxes made by containerd's CRI plugin: hosts and resolv.conf
// below its root, shm below its state.
func listSandboxDirectories(_ context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	mounts, err := scan.Mounts()
	if err != nil {
		return nil, err
	}
	mounted := make(map[string]int)
	for _, m := range mounts {
		mounted[m.Point]++
	}
	var objects []object.Object
	var failures []error
	for _, base := range []string{scan.Host.Paths.ContainerdState, scan.Host.Paths.ContainerdRoot} {
		dir := path.Join(base, "io.containerd.grpc.v1.cri", "sandboxes")
		if base == "" || mounted[dir] > 0 {
			continue // not configured, or hidden by another mount
		}
		entries, device, err := directories(scan, dir)
		failures = append(failures, err)
		for _, entry := range entries {
			o := object.Object{
				Kind: object.SandboxDirectory, ID: path.Join(dir, entry.Name), SandboxID: entry.Name,
				Identity: fileIdentity(device, entry.Inode),
				Facts:    object.Facts("shmMounts", strconv.Itoa(mounted[path.Join(dir, entry.Name, "shm")])),
			}
			if !host.IsContainerID(entry.Name) {
				o.Foreign = "its name is not the ID of a sandbox"
			}
			objects = append(objects, o)
		}
	}
	return objects, errors.Join(failures...)
}
