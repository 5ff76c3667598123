package object

import (
	"slices"
)

// Kind is a kind of local object that a pod can leave behind.
type Kind string

// The kinds, in the order in which leftovers of one pod are released.
const (
	Sandbox             Kind = "sandbox"              // CRI pod sandbox
	Container           Kind = "container"            // CRI container
	ContainerdContainer Kind = "containerd-container" // containerd's container in k8s.io that CRI does not list
	Process             Kind = "process"              // process in a pod's cgroup
	Shim                Kind = "shim"                 // process of a shim: containerd's in k8s.io, CRI-O's conmon
	Rootfs              Kind = "rootfs"               // bundle of a container, with its root filesystem
	CNIAttachment       Kind = "cni-attachment"       // cached result of a CNI ADD (libcni cacheV1)
	Netns               Kind = "netns"                // network namespace that a CRI runtime keeps mounted
	Link                Kind = "link"                 // host end of a pod's veth
	IPAMLease           Kind = "ipam-lease"           // <CNI networks>/<network>/<IP>, of host-local
	Lease               Kind = "lease"                // containerd's lease of a sandbox
	SandboxDirectory    Kind = "sandbox-directory"    // of containerd's CRI plugin, below its root or state
	Mount               Kind = "mount"                // mount below a kubelet pod directory
	Cgroup              Kind = "cgroup"               // pod cgroup or one below it, per hierarchy
	PodDirectory        Kind = "pod-directory"        // <kubelet root>/pods/<uid>
	SystemdUnit         Kind = "systemd-unit"         // systemd's unit of a pod, a container or a mount that is gone
	PodLogs             Kind = "pod-logs"             // <pod logs>/<namespace>_<name>_<uid>

	Task             Kind = "task"              // containerd's task in k8s.io
	Snapshot         Kind = "snapshot"          // active snapshot of containerd in k8s.io
	PortMapping      Kind = "port-mapping"      // rule of CNI's portmap plugin in nf_tables
	DeviceAllocation Kind = "device-allocation" // pod in a checkpoint of kubelet's managers of devices, CPUs and memory
	BlockDevice      Kind = "block-device"      // loop device or encrypted mapping that a volume is made of
	PluginSocket     Kind = "plugin-socket"     // socket of a plugin of kubelet on which nobody listens
	LogLink          Kind = "log-link"          // <directory of pod logs>/../containers/<pod>_<namespace>_<container>-<ID>.log
	VolumeAttachment Kind = "volume-attachment" // volume that the Node's status has as attached
	StorageSession   Kind = "storage-session"   // iSCSI session or NVMe over TCP controller of a volume
	SharedMemory     Kind = "shared-memory"     // segment of System V shared memory in the node's IPC namespace
	StrayCgroup      Kind = "stray-cgroup"      // cgroup of a pod outside of the tree of our kubelet's driver
	DetachedVolume   Kind = "detached-volume"   // volume that is on the node while the Node's status lacks it
	RunFile          Kind = "run-file"          // of a container in /run: containerd's FIFOs, udev's record of a cgroup
	HostMount        Kind = "host-mount"        // mount of a pod outside of kubelet's directory
	StagedVolume     Kind = "staged-volume"     // <kubelet root>/plugins/kubernetes.io/csi/<driver>/<sha256>
)

// NamedByID reports whether objects of a kind show only the ID of a container or a sandbox: others name its pod.
func (k Kind) NamedByID() bool {
	return slices.Contains([]Kind{ContainerdContainer, Task, Shim, Rootfs, SandboxDirectory, Snapshot, IPAMLease,
		PortMapping, StrayCgroup, RunFile}, k)
}

// LosesOwner reports whether objects of a kind can outlive the source of their pod's name. CNI DEL deletes the cache
// file, which may be the only source for a network namespace, the link into it, and a lease. Shared memory has the PID
// of its creator; a FUSE filesystem shows its server only while that runs.
func LosesOwner(kind Kind) bool {
	return kind == Netns || kind == Link || kind == Lease || kind == SharedMemory || kind == HostMount || kind.NamedByID()
}

// Networked reports whether objects of a kind belong to the network of a sandbox. The witnesses that must deny an object
// before it can be a leftover are the apiserver and kubelet, and those of its kinds.Spec.GoneFrom:
//
//	kind                                                apiserver  kubelet  runtime      containerd
//	sandbox, container                                  UID        UID      -            -
//	process, mount, cgroup, pod-directory               UID        UID      -            -
//	cni-attachment, netns, link                         UID        UID      sandbox ID   sandbox ID
//	systemd-unit, log-link                              UID        UID      container    container
//	pod-logs                                            UID        UID      -            -
//	other report-only kinds                             UID        UID      -            -
//	lease                                               UID        UID      sandbox ID   container, sandbox, task
//	containerd-container                                UID        UID      ID, pod      -
//	task, shim, rootfs, snapshot, run-file              UID        UID      ID, pod      ID, pod
//	sandbox-directory, ipam-lease, port-mapping         UID        UID      sandbox ID   sandbox ID
//
// When the runtime still lists the sandbox of a vanished pod, that sandbox is itself the leftover, so it is no
// evidence for the pod's other objects. But as long as the runtime knows the sandbox, its network is released by
// removing the sandbox, and never without the runtime. A lease also means that containerd knows a sandbox, until it is
// proven to be a leftover itself. Every witness must answer for every kind.
func (k Kind) Networked() bool { return k == CNIAttachment || k == Netns || k == Link }
