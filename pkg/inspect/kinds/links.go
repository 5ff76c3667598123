package kinds

import (
	"context"
	"fmt"
	"strconv"

	"github.com/nodeagent/nodeagent/internal/host/network"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// LostNetns reports whether a link is foreign only because no runtime keeps the namespace of its other end
// mounted.
func LostNetns(o *object.Object) bool {
	return o.Kind == object.Link && o.Identity.Link.Namespace == 0 && o.Identity.Link.PeerNamespace != -1
}

func linkSpec() Spec {
	return Spec{
		Kind: object.Link, List: listLinks, GoneFrom: ofSandbox,
		What: "the host's end of a pod's veth pair",
		Harm: "a route or a bridge port that leads nowhere",
	}
}

// listLinks lists the veth devices of the host. One belongs to a pod if its other end is in a network namespace that a
// runtime mounted for that pod: see attachOwners. Its name is no proof, because several network plugins give a
// re-created pod the name of the old one.
func listLinks(_ context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	netnsMounts, err := scan.NetnsMounts()
	if err != nil {
		return nil, err
	}
	var paths []string
	inodes := make(map[string]uint64)
	for _, p := range netnsMounts {
		if p.Inode != 0 && foreignNetns(scan.Host.Paths, p) == "" {
			paths = append(paths, p.Path)
			inodes[p.Path] = p.Inode
		}
	}
	veths, numbers, err := network.Veths(scan.Host, paths)
	if err != nil {
		return nil, err
	}
	pinOf := make(map[int]string)
	for _, name := range paths {
		if number, ok := numbers[name]; ok {
			pinOf[number] = name
		}
	}
	objects := make([]object.Object, 0, len(veths))
	for _, v := range veths {
		o := object.Object{
			Kind: object.Link,
			ID:   fmt.Sprintf("%s#%d", v.Name, v.Index),
			Identity: object.Identity{Link: object.LinkID{Index: v.Index, PeerIndex: v.PeerIndex,
				PeerNamespace: v.PeerNamespaceID, MAC: v.MAC}},
			Facts: object.Facts("name", v.Name, "master", v.MasterName, "plugin", network.PluginOfLink(v.Name),
				"netns", pinOf[v.PeerNamespaceID], "up", strconv.FormatBool(v.Up)),
		}
		switch {
		case v.PeerNamespaceID < 0:
			o.Foreign = "both ends are on the host: nothing shows its owner"
		case pinOf[v.PeerNamespaceID] == "":
			o.Foreign = "its other end is in a network namespace that no CRI runtime mounted"
		default:
			o.Identity.Link.Namespace = inodes[pinOf[v.PeerNamespaceID]]
		}
		objects = append(objects, o)
	}
	return objects, nil
}
