package kinds

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// maxRunFiles limits the files listed of one directory: /run of some nodes holds hundreds of thousands.
const maxRunFiles = 1024

func runFileSpec() Spec {
	return Spec{
		Kind: object.RunFile, List: listRunFiles, GoneFrom: ofSandbox,
		ReportOnly: "containerd removes its directories when it starts; once you know that the container is gone, `rm` removes " +
			"a FIFO or a record of udev",
		Unused: "nothing knows its container",
		What: "a file that a container left in /run: the FIFOs of its output (`<containerd state>/io.containerd.grpc.v1.cri/" +
			"containers/<ID>`, `<containerd state>/fifo/…/<ID>-stdout`), or udev's record of its memory cgroup " +
			"(`/run/udev/data/+cgroup:…(…:<cgroup>)`, before Linux 5.9)",
		Harm: "inodes and memory of /run: when these run out, no container starts",
	}
}

// listRunFiles lists the files in /run that are named after a container or its cgroup:
//
//	<containerd state>/io.containerd.grpc.v1.cri/containers/<container>/io/<number>/<container>-stdout   FIFOs of CRI's containers
//	<containerd state>/fifo/<number>/<container>-stdout                                                  of containerd's other clients
//	/run/udev/data/+cgroup:<cache>(<number>:<cgroup>)   udev's record of a slab cache of a memory cgroup
//
// containerd: internal/cri/io/helpers.go (newFifos), pkg/cio/io_unix.go (NewFIFOSetInDir); Linux before 5.9:
// mm/slab_common.c (memcg_create_kmem_cache). https://github.com/containerd/containerd/issues/2421,
// https://github.com/cloudfoundry/garden-runc-release/issues/97.
func listRunFiles(_ context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	var objects []object.Object
	var failures []error
	add := func(dir, what string, owner func(host.Entry) (uid, container string)) {
		entries, device, err := scan.Host.Files.Entries(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			failures = append(failures, err)
		}
		found, more := 0, 0
		for _, entry := range entries {
			if more > 0 && what == looseFIFOs {
				more++ // to look into each takes too long
				continue
			}
			uid, container := owner(entry)
			if uid+container == "" {
				continue
			}
			if found++; found > maxRunFiles {
				more++
				continue
			}
			objects = append(objects, object.Object{Kind: object.RunFile, ID: path.Join(dir, entry.Name),
				Pod:         object.Pod{UID: uid},
				ContainerID: container, Facts: object.Facts("what", what),
				Identity: fileIdentity(device, entry.Inode)})
		}
		if more > 0 {
			objects[len(objects)-1].Facts["notListed"] = fmt.Sprintf("%d more in %s", more, dir)
		}
	}
	if state := scan.Host.Paths.ContainerdState; state != "" {
		add(path.Join(state, "io.containerd.grpc.v1.cri/containers"), "FIFOs of a container", func(e host.Entry) (_, container string) {
			if e.IsDir() && host.IsContainerID(e.Name) {
				container = e.Name
			}
			return "", container
		})
		dir := path.Join(state, "fifo")
		add(dir, looseFIFOs, func(e host.Entry) (_, container string) {
			if !e.IsDir() {
				return "", ""
			}
			names, err := scan.Host.Files.List(path.Join(dir, e.Name))
			if err != nil {
				return "", "" // removed meanwhile
			}
			for _, name := range names {
				id, _, fifo := strings.Cut(name, "-std")
				if fifo && host.IsContainerID(id) {
					container = id
				}
			}
			return "", container
		})
	}
	add("/run/udev/data", "a record of udev", func(e host.Entry) (uid, container string) {
		return ownerOfRecord(scan.Host.Paths, e.Name)
	})
	return objects, errors.Join(failures...)
}

// looseFIFOs is the fact of FIFOs in a directory that only its files name.
const looseFIFOs = "FIFOs of a client of containerd"

// ownerOfRecord returns the pod or the container in the name of udev's record of a memory cgroup:
// +cgroup:dentry(1187:cri-containerd-<container>.scope).
func ownerOfRecord(paths host.Paths, name string) (uid, container string) {
	if !strings.HasPrefix(name, "+cgroup:") || !strings.HasSuffix(name, ")") {
		return "", ""
	}
	_, name, _ = strings.Cut(strings.TrimSuffix(name, ")"), "(")
	_, name, _ = strings.Cut(name, ":")
	if container = host.ContainerOfCgroup(name); container != "" {
		return "", container
	}
	for _, root := range paths.PodCgroupRoots() {
		if uid, ok := root.PodUID(name); ok {
			return uid, ""
		}
	}
	return "", ""
}
