package remediate

import (
	"fmt"
	"maps"
	"strconv"

	"github.com/nodeagent/nodeagent/internal/hand"
	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// The functions here translate what was judged into what the hand compares before it acts. The keys are those of the
// listers in pkg/inspect. A number that is missing or malformed is an error: nothing is done with an object whose identity
// is not known.

func runtimeObject(o inspect.Judged) (hand.RuntimeObject, error) {
	created, err := integer(o, "created")
	return hand.RuntimeObject{ID: o.Identity["id"], CreatedAt: created}, err
}

func processOf(o inspect.Judged) (hand.Process, error) {
	pid, err := integer(o, "pid")
	if err != nil {
		return hand.Process{}, err
	}
	start, err := unsigned(o, "startTime")
	return hand.Process{PID: int(pid), StartTime: start, UID: o.Pod.UID, Driver: o.Facts["driver"]}, err
}

func mountOf(o inspect.Judged) (hand.Mount, error) {
	id, err := integer(o, "id")
	return hand.Mount{
		ID: int(id), Device: o.Identity["device"], Root: o.Identity["root"], Point: o.Identity["point"],
		Source: o.Identity["source"], FSType: o.Identity["type"],
	}, err
}

func fileOf(o inspect.Judged) (hand.FileID, error) {
	inode, err := unsigned(o, "inode")
	if err == nil && o.Identity["device"] == "" {
		err = fmt.Errorf("%s %s: no device in its identity", o.Kind, o.ID)
	}
	return hand.FileID{Device: o.Identity["device"], Inode: inode}, err
}

func cgroupOf(o inspect.Judged) (hand.Cgroup, error) {
	file, err := fileOf(o)
	return hand.Cgroup{Dir: o.ID, UID: o.Pod.UID, Driver: o.Facts["driver"], File: file}, err
}

func attachmentOf(o inspect.Judged) (hand.Attachment, error) {
	file, err := fileOf(o)
	if err != nil {
		return hand.Attachment{}, err
	}
	size, err := integer(o, "size")
	return hand.Attachment{File: o.ID, Inode: file.Inode, Size: size, ContainerID: o.SandboxID}, err
}

// netnsOf takes the number of the namespace, or of the empty file where nothing is pinned any more.
func netnsOf(o inspect.Judged) (hand.Netns, error) {
	inode, err := unsigned(o, "inode")
	return hand.Netns{Path: o.ID, Inode: inode}, err
}

func leaseOf(o inspect.Judged) (hand.RuntimeLease, error) {
	created, err := integer(o, "created")
	return hand.RuntimeLease{ID: o.Identity["id"], CreatedAt: created}, err
}

func linkOf(o inspect.Judged) (hand.Link, error) {
	var numbers [3]int64
	for i, key := range []string{"index", "peerIndex", "peerNamespace"} {
		n, err := integer(o, key)
		if err != nil {
			return hand.Link{}, err
		}
		numbers[i] = n
	}
	return hand.Link{Index: int(numbers[0]), PeerIndex: int(numbers[1]), PeerNetns: int(numbers[2])}, nil
}

func integer(o inspect.Judged, key string) (int64, error) {
	n, err := strconv.ParseInt(o.Identity[key], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s %s: identity %s: %w", o.Kind, o.ID, key, err)
	}
	return n, nil
}

// unsigned is for numbers that are never 0, so that a lister that could not tell is noticed.
func unsigned(o inspect.Judged, key string) (uint64, error) {
	n, err := strconv.ParseUint(o.Identity[key], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s %s: identity %s: %w", o.Kind, o.ID, key, err)
	}
	if n == 0 {
		return 0, fmt.Errorf("%s %s: identity %s is 0", o.Kind, o.ID, key)
	}
	return n, nil
}

func sameIdentity(a, b inspect.Identity) bool { return maps.Equal(a, b) }
