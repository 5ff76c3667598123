package inspect

import (
	"context"
	"fmt"
	"strconv"
)

// listLinks lists the veth devices of the host. One is a pod's if its other end is in a network namespace that a runtime
// pinned for that pod: see tie. Its name tells nothing, because several network plugins give a pod that was made anew
// the name of the old one.
func listLinks(_ context.Context, scan *Scan) ([]Object, error) {
	pins, err := scan.pins()
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, p := range pins {
		if p.inode != 0 && foreignPin(p) == "" {
			paths = append(paths, p.path)
		}
	}
	veths, numbers, err := scan.Host.Veths(paths)
	if err != nil {
		return nil, err
	}
	pinOf := make(map[int]string)
	for _, name := range paths {
		if number, ok := numbers[name]; ok {
			pinOf[number] = name
		}
	}
	objects := make([]Object, 0, len(veths))
	for _, v := range veths {
		o := Object{
			Kind: Link,
			ID:   fmt.Sprintf("%s#%d", v.Name, v.Index),
			Identity: Identity{
				"index": strconv.Itoa(v.Index), "peerIndex": strconv.Itoa(v.PeerIndex),
				"peerNamespace": strconv.Itoa(v.PeerNamespaceID), "mac": v.MAC,
			},
			Facts: facts("name", v.Name, "master", v.MasterName, "netns", pinOf[v.PeerNamespaceID], "up", strconv.FormatBool(v.Up)),
		}
		switch {
		case v.PeerNamespaceID < 0:
			o.Foreign = "both ends are on the host: nothing tells whose it is"
		case pinOf[v.PeerNamespaceID] == "":
			o.Foreign = "its other end is in a network namespace that no CRI runtime pinned"
		}
		objects = append(objects, o)
	}
	return objects, nil
}
