package inspect

import "context"

// Lister lists the objects of one kind that exist on the node, whoever owns them. An error together with objects means
// that some could not be read: nothing is known about objects that are not listed. A lister never blocks on what it
// lists: no path below a mount is looked up.
type Lister struct {
	Kind Kind
	List func(ctx context.Context, scan *Scan) ([]Object, error)
}

// Listers is the list of all listers. Local objects come before those that the runtime lists, so that its answers are
// newer than the objects they are compared with: see Inventory.
func Listers() []Lister {
	return []Lister{
		{Mount, listMounts},
		{PodDirectory, listPodDirectories},
		{Cgroup, listCgroups},
		{Process, listProcesses},
		{Netns, listNetns},
		{Link, listLinks},
		{CNIAttachment, listAttachments},
		{Sandbox, listSandboxes},
		{Container, listContainers},
		{Lease, listLeases},
	}
}

// Kinds are all kinds, in the order in which leftovers of one pod are released.
func Kinds() []Kind {
	return []Kind{Sandbox, Container, Process, CNIAttachment, Netns, Link, Lease, Mount, Cgroup, PodDirectory}
}
