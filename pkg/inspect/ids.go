package inspect

import (
	"errors"
	"slices"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// namedByID reports whether all that objects of a kind show is the ID of a container or a sandbox: others name its pod.
func namedByID(kind Kind) bool {
	return slices.Contains([]Kind{ContainerdContainer}, kind)
}

// ids is what names the pods of sandboxes and containers, which have IDs of one form and one space: the runtime and
// containerd, CNI's cache, and objects of this pass such as a process in the cgroup of a container.
type ids struct {
	owners     map[string][]owner // by ID
	handmade   map[string]bool    // containers in k8s.io that CRI did not create
	unreadable error
}

// newIDs collects the owners of IDs. sandboxes are the owners that are known already.
func newIDs(scan *Scan, objects []Object, sandboxes map[string][]owner) ids {
	t := ids{owners: make(map[string][]owner), handmade: make(map[string]bool)}
	for id, owners := range sandboxes {
		t.owners[id] = slices.Clone(owners)
	}
	containers, err := scan.containers()
	if err == nil {
		for _, c := range containers {
			t.add(c.GetId(), podOfLabels(c.GetLabels()))
		}
	}
	records, recordsErr := scan.records()
	if errors.Is(recordsErr, hosterr.ErrNotConfigured) {
		recordsErr = nil // another runtime
	}
	for _, record := range records {
		t.add(record.ID, podOfLabels(record.Labels))
		t.handmade[record.ID] = record.Labels[kindLabel] == ""
	}
	for i := range objects {
		if o := &objects[i]; o.Foreign == "" {
			t.add(o.SandboxID, o.Pod)
			t.add(o.ContainerID, o.Pod)
		}
	}
	t.unreadable = errors.Join(err, recordsErr)
	return t
}

// add records that an ID is one of a pod's.
func (t ids) add(id string, pod Pod) {
	same := func(other owner) bool { return other.pod.UID == pod.UID }
	if id != "" && pod.UID != "" && !slices.ContainsFunc(t.owners[id], same) {
		t.owners[id] = append(t.owners[id], owner{id, pod})
	}
}

// attachTo sets the owner of an object that shows only an ID.
func (t ids) attachTo(o *Object) {
	id := o.ContainerID + o.SandboxID // such an object has one of them
	if !namedByID(o.Kind) || o.Foreign != "" {
		return
	}
	if t.handmade[id] {
		o.Foreign = "of a container that was created by hand in containerd's namespace k8s.io"
		return
	}
	sandbox := o.SandboxID
	attachOwner(o, t.owners[id])
	o.SandboxID = sandbox
	if t.unreadable != nil && o.Foreign == "" && o.Pod.UID == "" {
		o.Doubt = "its owner is not known: " + t.unreadable.Error()
	}
}

func podOfLabels(labels map[string]string) Pod {
	return Pod{UID: labels[uidLabel], Namespace: labels[namespaceLabel], Name: labels[nameLabel]}
}
