package inspect

import "context"

// Lister lists the objects of one kind that are on the node now, whoever they belong to. An error beside objects
// means that some could not be looked at: nothing is known of what is not listed. A lister never touches what it
// lists in a way that could block: no path below a mount is looked up.
type Lister struct {
	Kind Kind
	List func(ctx context.Context, scan *Scan) ([]Object, error)
}

// Listers is the list of all listers. What is local comes before what the runtime is asked for, so that its answers are
// younger than the objects they are held against: see Gather.
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
