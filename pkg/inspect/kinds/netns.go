package kinds

import (
	"context"
	"path"
	"slices"
	"strconv"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

func netnsSpec() Spec {
	return Spec{
		Kind: object.Netns, List: listNetns, GoneFrom: ofSandbox,
		What: "a network namespace that a CRI runtime keeps mounted",
		Harm: "keeps its interfaces, addresses and sockets alive",
	}
}

// listNetns lists the network namespaces that a runtime mounted. The CNI cache or the runtime names the pod: see
// attachOwners.
func listNetns(_ context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	netnsMounts, err := scan.NetnsMounts()
	if err != nil {
		return nil, err
	}
	objects := make([]object.Object, 0, len(netnsMounts))
	for _, p := range netnsMounts {
		o := object.Object{Kind: object.Netns, ID: p.Path, Foreign: foreignNetns(scan.Host.Paths, p)}
		if p.Inode != 0 {
			o.Identity = object.Identity{File: object.FileID{Inode: p.Inode}}
			o.Facts = object.Facts("mounts", strconv.Itoa(p.Mounts), "alsoAt", p.Also)
		} else {
			o.Identity = fileIdentity(p.File.Device, p.File.Inode)
			o.Facts = map[string]string{"mounts": "0", "state": EmptyFile}
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// EmptyFile is the state of a file that no longer has a namespace mounted on it.
const EmptyFile = "empty file"

// foreignNetns returns why a mount does not belong to the runtime: the runtime's have names in its own form, and their
// files are empty.
func foreignNetns(paths host.Paths, p hostscan.NetnsMount) string {
	switch {
	case !paths.IsRuntimeNetns(path.Base(p.Path)) && paths.IsCRIO():
		return "not created by CRI-O: its name is no UUID"
	case !paths.IsRuntimeNetns(path.Base(p.Path)):
		return "not created by a CRI runtime: its name is not cni-<UUID>"
	case p.Inode == 0 && p.File.Size != 0:
		return "not a network namespace: a file with content"
	}
	return ""
}

// inNetnsDirs reports whether a path is directly in one of the runtime's directories for network namespaces.
func inNetnsDirs(scan *hostscan.Scan, name string) bool {
	return slices.Contains(scan.Host.Paths.NetnsDirs, path.Dir(scan.NetnsPath(name)))
}
