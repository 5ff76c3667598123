package release

import (
	"fmt"
	"strconv"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// The functions here translate the identity of an evaluated object into the form that package mutate compares before it
// acts. The keys are those of the listers in pkg/inspect/kinds. A missing or malformed number is an error: an object without
// a known identity is not touched.

func runtimeObject(o object.Assessment) (mutate.RuntimeObject, error) {
	created, err := integer(o, "created")
	return mutate.RuntimeObject{ID: o.Identity["id"], CreatedAt: created}, err
}

func processOf(o object.Assessment) (mutate.Process, error) {
	pid, err := integer(o, "pid")
	if err != nil {
		return mutate.Process{}, err
	}
	start, err := unsigned(o, "startTime")
	return mutate.Process{PID: int(pid), StartTime: start, UID: o.Pod.UID, Driver: o.Facts["driver"]}, err
}

func mountOf(o object.Assessment) (mutate.Mount, error) {
	id, err := integer(o, "id")
	return mutate.Mount{
		ID: int(id), Device: o.Identity["device"], Root: o.Identity["root"], Point: o.Identity["point"],
		Source: o.Identity["source"], FSType: o.Identity["type"],
	}, err
}

func fileOf(o object.Assessment) (mutate.FileID, error) {
	inode, err := unsigned(o, "inode")
	if err == nil && o.Identity["device"] == "" {
		err = fmt.Errorf("%s %s: no device in its identity", o.Kind, o.ID)
	}
	return mutate.FileID{Device: o.Identity["device"], Inode: inode}, err
}

func cgroupOf(o object.Assessment) (mutate.Cgroup, error) {
	file, err := fileOf(o)
	return mutate.Cgroup{Dir: o.ID, UID: o.Pod.UID, Driver: o.Facts["driver"], File: file}, err
}

func attachmentOf(o object.Assessment) (mutate.Attachment, error) {
	file, err := fileOf(o)
	if err != nil {
		return mutate.Attachment{}, err
	}
	size, err := integer(o, "size")
	return mutate.Attachment{File: o.ID, Inode: file.Inode, Size: size, ContainerID: o.SandboxID}, err
}

// netnsOf takes the inode of the namespace, or of the empty file when no namespace is mounted on it any more.
func netnsOf(o object.Assessment) (mutate.Netns, error) {
	inode, err := unsigned(o, "inode")
	return mutate.Netns{Path: o.ID, Inode: inode}, err
}

func leaseOf(o object.Assessment) (mutate.RuntimeLease, error) {
	created, err := integer(o, "created")
	return mutate.RuntimeLease{ID: o.Identity["id"], CreatedAt: created}, err
}

func linkOf(o object.Assessment) (mutate.Link, error) {
	var numbers [3]int64
	for i, key := range []string{"index", "peerIndex", "peerNamespace"} {
		n, err := integer(o, key)
		if err != nil {
			return mutate.Link{}, err
		}
		numbers[i] = n
	}
	return mutate.Link{Index: int(numbers[0]), PeerIndex: int(numbers[1]), PeerNetns: int(numbers[2])}, nil
}

func integer(o object.Assessment, key string) (int64, error) {
	n, err := strconv.ParseInt(o.Identity[key], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s %s: identity %s: %w", o.Kind, o.ID, key, err)
	}
	return n, nil
}

// unsigned is for numbers that are never 0: 0 means that the lister did not know it.
func unsigned(o object.Assessment, key string) (uint64, error) {
	n, err := strconv.ParseUint(o.Identity[key], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s %s: identity %s: %w", o.Kind, o.ID, key, err)
	}
	if n == 0 {
		return 0, fmt.Errorf("%s %s: identity %s is 0", o.Kind, o.ID, key)
	}
	return n, nil
}

func runtimeContainerOf(o object.Assessment) (mutate.RuntimeContainer, error) {
	created, err := integer(o, "created")
	return mutate.RuntimeContainer{ID: o.Identity["id"], CreatedAt: created, UID: o.Pod.UID}, err
}

func shimOf(o object.Assessment) (mutate.Shim, error) {
	pid, err := integer(o, "pid")
	if err != nil {
		return mutate.Shim{}, err
	}
	start, err := unsigned(o, "startTime")
	return mutate.Shim{PID: int(pid), StartTime: start, ID: o.ContainerID}, err
}

func addressLeaseOf(o object.Assessment) (mutate.AddressLease, error) {
	file, err := fileOf(o)
	if err != nil {
		return mutate.AddressLease{}, err
	}
	modified, err := integer(o, "modified")
	return mutate.AddressLease{File: o.ID, ID: file, Modified: modified, ContainerID: o.SandboxID}, err
}
