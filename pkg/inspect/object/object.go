// Package object has the objects that pods can leave on a node, as plain data: kinds, identities, verdicts, and the
// history that passes share.
package object

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
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

// Pod names the pod that an object belongs to, as far as the object itself shows it. UID is kubelet's: for a static pod
// the one that is used on the node.
type Pod struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Identity is recorded when an object is first seen and compared before every action. It distinguishes the object from
// another one that later gets the same name. All values are decimal unless said otherwise; a device is "major:minor".
//
//	sandbox, container, containerd-container  id (hexadecimal), created (nanoseconds since the epoch)
//	process, shim          pid, startTime (clock ticks since boot)
//	task                   id (hexadecimal), pid
//	snapshot               key, snapshotter, created (nanoseconds since the epoch)
//	port-mapping           family (ip, ip6), table, chain, handle, comment of the rule
//	ipam-lease             device, inode, modified (nanoseconds since the epoch) of the file
//	cni-attachment         device, inode, size, modified (nanoseconds since the epoch) of the cache file
//	netns                  inode of the namespace; device and inode of the file where nothing is mounted on it
//	link                   index, peerIndex, peerNamespace (nsid; -1: this namespace), mac, namespace (inode of the peer's)
//	lease                  id (hexadecimal), created (nanoseconds since the epoch)
//	mount, host-mount      id, device, root, point, source, type
//	cgroup, stray-cgroup, pod-directory, pod-logs, log-link, sandbox-directory, rootfs, run-file  device, inode
//	block-device           device, sequence (diskseq; empty before Linux 5.15), volume
//	systemd-unit           unit
//	device-allocation      uid, resource
//	plugin-socket          inode, changed (nanoseconds since the epoch)
//	storage-session        target
//	volume-attachment      name
//	detached-volume        name; device, inode of its staging directory or target of its session
//	shared-memory          id, key, creator (PID), size
//	staged-volume          device, inode of its directory; id, device, root of its mount where it has none
type Identity map[string]string

// Holder is a process that keeps an object busy.
type Holder struct {
	PID     int    `json:"pid"`
	Command string `json:"command"`
	How     string `json:"how"` // open-file, cwd, root, mapped, mount-namespace, network-namespace, cgroup
	Pod     Pod    `json:"pod,omitzero"`
}

// Object is one object on the node, as observed in one pass.
type Object struct {
	Kind        Kind              `json:"kind"`
	ID          string            `json:"id"` // unique in its kind: path, mount point#mount ID, container ID, pid …
	Pod         Pod               `json:"pod"`
	SandboxID   string            `json:"sandboxID,omitempty"`
	ContainerID string            `json:"containerID,omitempty"`
	Identity    Identity          `json:"identity"`
	Facts       map[string]string `json:"facts,omitempty"` // for users and for the action: filesystem type, state …
	Holders     []Holder          `json:"holders"`
	Foreign     string            `json:"-"` // why it cannot belong to a pod of this kubelet; empty otherwise
	Doubt       string            `json:"-"` // why its state is unknown; empty otherwise
	// what in the runtime uses the sandbox of a lease, what uses a staged volume, what its pod serves; empty otherwise
	InUse string `json:"-"`
	// why its pod opts out of releases, by its annotation or labels, and whether these are known
	OptOut      string `json:"optOut,omitempty"`
	LabelsKnown bool   `json:"-"`
}

// Verdict is the result of an inspection for an object.
type Verdict string

// The verdicts.
const (
	Live      Verdict = "live"      // a witness knows its pod, or it may just be starting
	Leftover  Verdict = "leftover"  // every witness agrees, all gates are open, seen often and long enough
	Candidate Verdict = "candidate" // no witness knows its pod, but it is not proven yet
	Unknown   Verdict = "unknown"   // a required witness did not answer
	Unowned   Verdict = "unowned"   // everything was read and no source names its pod: reported, never touched
	Foreign   Verdict = "foreign"   // does not belong to a pod of this kubelet: never touched
)

// Answer is one witness's statement about one object.
type Answer string

// The answers. Details may follow after a colon.
const (
	Knows    Answer = "knows"
	Denies   Answer = "does not know"
	NotAsked Answer = "not asked"
	NoAnswer Answer = "could not be heard"
)

// Assessment is an object with its verdict and the reasons for it. Its JSON form is a contract.
type Assessment struct {
	Object
	Verdict   Verdict           `json:"verdict"`
	Why       string            `json:"why"`
	Witnesses map[string]Answer `json:"witnesses"`         // apiserver, kubelet, runtime, containerd …
	Running   bool              `json:"running,omitempty"` // its pod has a running container: see running.go
	FirstSeen finding.Timestamp `json:"firstSeen,omitzero"`
	Passes    int               `json:"passes,omitempty"`
	Release   string            `json:"release,omitempty"` // what a release would do
	// PassesBreaker: it is a leftover although the gate against mass orphaning is closed; see breaker.go
	PassesBreaker bool `json:"passesBreaker,omitempty"`
}

// Gate is a condition on the whole node. While one is closed, no object is a leftover, except those that a stronger
// proof takes through the gate against mass orphaning.
type Gate struct {
	Name  string            `json:"name"`
	Open  bool              `json:"open"`
	Why   string            `json:"why"`
	Since finding.Timestamp `json:"since,omitzero"`  // closed since, as far as passes without a gap show
	Opens string            `json:"opens,omitempty"` // by whom, and when
}

// Failure is a source that could not be read.
type Failure struct {
	What   string          `json:"what"`
	Error  string          `json:"error"`
	Access *finding.Access `json:"access,omitempty"` // the missing access, if that is the cause
}

func FailureOf(what string, err error) Failure {
	return Failure{what, err.Error(), finding.AccessOf(err)}
}

// Report is the result of one pass. Its JSON form is a contract.
type Report struct {
	At      finding.Timestamp `json:"at"`
	Objects []Assessment      `json:"objects"`
	Gates   []Gate            `json:"gates"`
	Errors  []Failure         `json:"errors"`
	Notes   []string          `json:"notes,omitempty"` // conditions that make proof harder on this node, once each
}

// Suspicious returns the report without the objects that belong to living pods or to no pod of this kubelet.
func (r Report) Suspicious() Report {
	all := r.Objects
	r.Objects = []Assessment{} // of its own: the others' memory is freed
	for i := range all {
		if all[i].Verdict != Live && all[i].Verdict != Foreign {
			r.Objects = append(r.Objects, all[i])
		}
	}
	return r
}

// Sighting is the record kept between passes about an object that no witness knows.
type Sighting struct {
	Identity Identity            `json:"identity"`
	First    finding.Timestamp   `json:"first"`
	Last     finding.Timestamp   `json:"last"`
	Passes   int                 `json:"passes"`            // in which every witness could be trusted
	Denials  []finding.Timestamp `json:"denials,omitempty"` // times of fresh LISTs of the apiserver without its pod
	Named    NameAnswer          `json:"named,omitzero"`    // only for a running pod: see podKey

	// The owner, for objects that can outlive the source of their pod's name: see losesOwner.
	Pod       Pod    `json:"pod,omitzero"`
	SandboxID string `json:"sandboxID,omitempty"`
}

// History holds sightings by kind and ID, and those of running pods by podKey. It survives a restart of the agent but
// not of the machine: a boot starts a new history.
type History map[string]Sighting

// The gate against mass orphaning protects living pods that a witness wrongly denies. If a node was away and its pods
// were removed by force, many real leftovers close it, and would forever. So a pod without running processes may pass
// by a second, stronger proof (see strongerProof). A release takes one such pod per pass: see release.Plan.

// Breaker is the name of the gate against mass orphaning.
const Breaker = "no-mass-orphaning"

// HasEnded reports whether the runtime has ended a sandbox or a container. A lease is no sign of a running pod.
func (o *Object) HasEnded() bool {
	return o.Kind == Lease || o.Kind == Sandbox && o.Facts["state"] == "NOTREADY" ||
		o.Kind == Container && o.Facts["state"] == "EXITED"
}

// GateApplies reports whether a closed gate matters for objects of a kind.
func GateApplies(g Gate, kind Kind) bool { return g.Name != NetworkReady || kind.Networked() }

// NetworkReady is the name of the gate that applies to network objects only.
const NetworkReady = "network-ready"

// NamedByID reports whether objects of a kind show only the ID of a container or a sandbox: others name its pod.
func (k Kind) NamedByID() bool {
	return slices.Contains([]Kind{ContainerdContainer, Task, Shim, Rootfs, SandboxDirectory, Snapshot, IPAMLease,
		PortMapping, StrayCgroup, RunFile}, k)
}

// Kubelet lets a node's own identity read neither its /pods nor its metrics. Then its podresources socket is asked
// instead, which needs no credentials (see kubelet.PodNames). It is a weaker witness, so the proof needs more:
//
//   - It names pods and has no UIDs. A missing name is a denial; a present name denies a pod only if the apiserver
//     lists another pod of that name, which kubelet is proven to have. A pod without a name is not denied until this is
//     so for every name.
//   - It does not show which force-deleted pods kubelet is still terminating. So a pod with a running container is
//     never a leftover, and an object must be seen for twice the grace period after the last of them ended, or three
//     times if the pod has no name. The apiserver must deny it over a whole grace period, and kubelet must be healthy
//     if its metrics are refused, too.
//   - It does not show the UIDs of static pods: theirs are unknown.
//   - Since 1.34 it lacks pods that have ended. So that not the apiserver's list alone denies those, the UID must not
//     be in allocatedPods either.
//
// The last list of the apiserver counts for pods that have ended, so that a node with completed pods costs no list in
// every pass.

// Unsure is the answer of a witness that answered, but cannot tell whether it means this pod. Details follow.
const Unsure Answer = "cannot tell"

// LosesOwner reports whether objects of a kind can outlive the source of their pod's name. CNI DEL deletes the cache
// file, which may be the only source for a network namespace, the link into it, and a lease. Shared memory has the PID
// of its creator; a FUSE filesystem shows its server only while that runs.
func LosesOwner(kind Kind) bool {
	return kind == Netns || kind == Link || kind == Lease || kind == SharedMemory || kind == HostMount || kind.NamedByID()
}

// CreatorEnded is why shared memory or a FUSE filesystem is foreign if only an earlier pass could name its pod.
const CreatorEnded = "nothing shows whether the process that created it belonged to a pod"

// ForeignUID returns why an object with this UID does not belong to kubelet.
func ForeignUID(uid string) string {
	switch {
	case uid == "":
		return "has no pod UID"
	case !host.IsPodUID(uid):
		return "its UID is not one that kubelet assigns: created by hand"
	}
	return ""
}

// Facts returns a map of names and values, without empty values.
func Facts(pairs ...string) map[string]string {
	made := make(map[string]string, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			made[pairs[i]] = pairs[i+1]
		}
	}
	return made
}

// IsUnowned reports whether all sources that could name the pod of o were read, and none did.
func IsUnowned(o *Object) bool { return o.Foreign == "" && o.Doubt == "" && o.Pod.UID == "" }

// The witnesses, as Assessment.Witnesses names them.
const (
	Apiserver  = "apiserver"
	Kubelet    = "kubelet"
	Runtime    = "runtime"
	Containerd = "containerd"
)

// Networked reports whether objects of a kind belong to the network of a sandbox. The witnesses that must deny an object
// before it can be a leftover are the apiserver and kubelet, and those of its kinds.Spec.GoneFrom:
//
//	kind                                                apiserver  kubelet  runtime      containerd
//	sandbox, container                                  UID        UID      -            -
//	process, mount, cgroup, pod-directory               UID        UID      -            -
//	cni-attachment, netns, link                         UID        UID      sandbox ID   sandbox ID
//	systemd-unit, log-link                              UID        UID      container    container
//	pod-logs                                            UID        UID      -            -
//	other kinds that are only reported                  UID        UID      -            -
//	lease                                               UID        UID      sandbox ID   container, sandbox, task
//	containerd-container                                UID        UID      ID, pod      -
//	task, shim, rootfs, snapshot, run-file              UID        UID      ID, pod      ID, pod
//	sandbox-directory, ipam-lease, port-mapping         UID        UID      sandbox ID   sandbox ID
//
// When the runtime still lists the sandbox of a pod that is gone, that sandbox is itself the leftover, so it is no
// evidence for the pod's other objects. But as long as the runtime knows the sandbox, its network is released by
// removing the sandbox, and never without the runtime. A lease also means that containerd knows a sandbox, until it is
// proven to be a leftover itself. Every witness must answer for every kind.
func (k Kind) Networked() bool { return k == CNIAttachment || k == Netns || k == Link }

func Unanswered(err error) Answer { return NoAnswer + Answer(": "+err.Error()) }

func Known(format string, args ...any) Answer {
	return Knows + Answer(": "+fmt.Sprintf(format, args...))
}

// Confirms reports whether a is Knows, whatever details follow.
func (a Answer) Confirms() bool {
	return a == Knows || strings.HasPrefix(string(a), string(Knows)+":")
}
