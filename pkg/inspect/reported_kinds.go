package inspect

// reportedSpecs are the report-only kinds. Their listers are in pkg/inspect/listers.
func reportedSpecs() []KindSpec {
	return []KindSpec{
		{
			Kind: LogLink, GoneFrom: ofSandbox,
			ReportOnly: "kubelet removes it once its garbage collection runs again",
			What: "a link to a container's log, `/var/log/containers/<pod>_<namespace>_<container>-<ID>.log`, whose target is " +
				"gone",
			Harm: "collectors of logs try it again and again",
		},
		{
			Kind: StagedVolume, InUse: (*Inventory).volumeInUse,
			ReportOnly: "only its driver can unstage it without loss, and a node may not read whether the volume is attached " +
				"elsewhere by now: let kubelet do it, by a pod that uses the volume on this node and is deleted again",
			Unused: "no pod on this node has a directory or a mount of the volume, and none waits for one",
			What:   "a volume that is staged below `<kubelet root>/plugins/kubernetes.io` and that no pod here uses",
			Harm:   "the volume stays attached, and cannot be detached or used on another node",
		},
		{
			Kind: PluginSocket, InUse: (*Inventory).pluginInUse,
			ReportOnly: "it belongs to no pod, so no witness knows whether it is still needed; a plugin that starts again " +
				"creates a new socket, and after the final removal of a plugin `rm` removes the file",
			Unused: "no process listens on it, and no pod that may be its plugin's runs here",
			What: "a socket in `plugins_registry`, `device-plugins` or `plugins/<driver>` of kubelet on which no process " +
				"listens",
			Harm: "kubelet tries to register the plugin again and again; registrars wait for a driver that is gone",
		},
		{
			Kind: DeviceAllocation,
			ReportOnly: "kubelet gives it back with its next allocation, or when it is restarted; its checkpoints must not be " +
				"changed while it runs",
			What: "devices, CPUs or memory that kubelet's checkpoint gives to a pod (`kubelet_internal_checkpoint`, " +
				"`cpu_manager_state`, `memory_manager_state`)",
			Harm: "kubelet may refuse pods that ask for them (UnexpectedAdmissionError)",
		},
		{
			Kind: BlockDevice, InUse: (*Inventory).volumeInUse,
			ReportOnly: "detaching a device loses its queued writes: its driver or an administrator has to decide",
			Unused:     "nothing mounts, maps or swaps on it, and no pod here has a directory of its volume",
			What: "a loop device with a file below kubelet's directory, or an encrypted mapping named after a " +
				"PersistentVolume (`pvc-<UUID>`)",
			Harm: "the file's disk space is not given back, the volume below cannot be detached",
		},
		{
			Kind: Task, FromRuntime: true, GoneFrom: ofSandbox,
			ReportOnly: "containerd deletes it with its container (containerd-container) or, where it has lost that, after its shim",
			What:       "a task of containerd in the namespace `k8s.io`, running or stopped",
			Harm:       "keeps the shim, the bundle and the root filesystem; a running one keeps the whole container",
		},
		{
			Kind: Snapshot, FromRuntime: true, GoneFrom: ofSandbox,
			ReportOnly: "containerd's garbage collection removes it, unless a label or a lease of another client keeps it",
			What:       "an active snapshot of containerd in the namespace `k8s.io`: the writable layer of a container",
			Harm:       "disk space",
		},
		{
			Kind: PortMapping, GoneFrom: ofSandbox,
			ReportOnly: "a CNI DEL with the cached configuration removes it: see cni-attachment; rules are never flushed",
			What: "a rule of CNI's portmap plugin that sends a port of the host to a sandbox (nftables, iptables-nft, iptables-legacy): " +
				"in the chain `CNI-HOSTPORT-DNAT`, or of the table `cni_hostport`",
			Harm: "the port of the host leads nowhere, or to the pod that has the address now; a new pod with that port " +
				"is not reached",
		},
		{
			Kind: VolumeAttachment, InUse: (*Inventory).volumeInUse,
			ReportOnly: "attachments belong to the attach-detach controller: `kubectl describe volumeattachment` with the " +
				"name in its facts says why it does not detach",
			Unused: "the volume is neither staged nor in the directory of a pod on this node, and no pod waits for one",
			What:   "a volume of a CSI driver that is attached to this node (`volumesAttached` of the Node) and not used here",
			Harm:   "the volume cannot be attached to another node: its next pod waits there (Multi-Attach)",
		},
		{
			Kind: DetachedVolume,
			ReportOnly: "it may be attached to another node by now, and two nodes that write to it destroy it: " +
				"see with `kubectl get volumeattachment` where it is, end its pods here, and let its driver or an administrator " +
				"disconnect it",
			Unused: "the Node's status lacks it, so the attach-detach controller counts it as detached",
			What: "a volume of a CSI driver that is mounted or connected on this node (staged, or by iSCSI or NVMe over TCP) while " +
				"`volumesAttached` of the Node lacks it",
			Harm: "the controller may attach it to another node: then two nodes write to one filesystem",
		},
		{
			Kind: StorageSession, InUse: (*Inventory).volumeInUse,
			ReportOnly: "a session that ends under queued writes loses them: its driver or an administrator has to decide",
			Unused:     "nothing mounts, maps or swaps on its disks, and no pod here has a directory of its volume",
			What: "an iSCSI session or an NVMe over TCP controller whose target is named after a PersistentVolume " +
				"(`pvc-<UUID>`)",
			Harm: "the volume stays connected and may be refused on another node; a server that is gone for good is tried " +
				"again and again, and each reader of the disk hangs",
		},
		{
			Kind: StrayCgroup, GoneFrom: ofSandbox,
			ReportOnly: "it lies outside of the tree in which the agent releases cgroups, and may be another Kubernetes': once " +
				"you know that it is not, `rmdir` removes it, the innermost first",
			Unused: "no process is in it, and nothing shows whether its pod was one of our kubelet's",
			What: "a cgroup of a pod or container where our kubelet does not look: in the tree of the other cgroup driver, or at " +
				"the root (`kubepods-…-pod<UID>.slice:cri-containerd:<ID>`, `system.slice:cri-containerd:<ID>`, `k8s.io/<ID>`)",
			Harm: "costs kernel memory; tens of thousands of them slow down everything that reads cgroups",
		},
		{
			Kind: RunFile, GoneFrom: ofSandbox,
			ReportOnly: "containerd removes its directories when it starts; once you know that the container is gone, `rm` removes " +
				"a FIFO or a record of udev",
			Unused: "nothing knows its container",
			What: "a file that a container left in /run: the FIFOs of its output (`<containerd state>/io.containerd.grpc.v1.cri/" +
				"containers/<ID>`, `<containerd state>/fifo/…/<ID>-stdout`), or udev's record of its memory cgroup " +
				"(`/run/udev/data/+cgroup:…(…:<cgroup>)`, before Linux 5.9)",
			Harm: "inodes and memory of /run: when these run out, no container starts",
		},
		{
			Kind:       HostMount,
			ReportOnly: "the host or another pod may have begun to use it: once you know that none does, `umount` removes it",
			What: "a mount outside of kubelet's directory that names a pod: it shows a directory of the pod's volumes, or is a FUSE " +
				"filesystem that a process of the pod has served. Pods make such mounts below a `hostPath` with mountPropagation " +
				"`Bidirectional`, or in the host's mount namespace",
			Harm: "a FUSE filesystem without its server fails every access (ENOTCONN), and the next pod with that `hostPath` does not " +
				"start; files of the pod stay on the disk",
		},
		{
			Kind: SharedMemory, Unused: "its creator has ended more than an hour ago, and nothing has it attached",
			ReportOnly: "its content may be meant for another pod that shares the node's IPC namespace; `ipcrm -m ID` " +
				"removes it",
			What: "a segment of System V shared memory in the node's IPC namespace that a process of a pod (`hostIPC`) " +
				"has created, if the agent has seen that process; otherwise one that nothing has attached is unowned",
			Harm: "memory, which counts for no pod any more",
		},
	}
}
