// Package inspect finds what deleted pods left behind on the node. It lists what is really there (listers.go),
// gathers who may live here (inventory.go) and compares the two (evaluate.go, pure). It can only read. Where a
// witness cannot be heard the answer is "unknown", never "leftover".
package inspect

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Kind is a kind of local object that a pod can leave behind.
type Kind string

// The kinds, in the order in which leftovers of one pod are released.
const (
	Sandbox       Kind = "sandbox"        // CRI pod sandbox
	Container     Kind = "container"      // CRI container
	Process       Kind = "process"        // process in a pod's cgroup
	CNIAttachment Kind = "cni-attachment" // cached result of a CNI ADD (libcni cacheV1)
	Netns         Kind = "netns"          // network namespace pinned by a CRI runtime
	Link          Kind = "link"           // host end of a pod's veth
	Lease         Kind = "lease"          // containerd's lease of a sandbox
	Mount         Kind = "mount"          // mount below a kubelet pod directory
	Cgroup        Kind = "cgroup"         // pod cgroup or one below it, per hierarchy
	PodDirectory  Kind = "pod-directory"  // <kubelet root>/pods/<uid>
)

// Pod names the pod that an object belongs to, as far as the object itself tells. UID is kubelet's: for a static pod
// the one that is used on the node.
type Pod struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Identity is frozen when an object is first seen and compared before every action: what distinguishes this object
// from another that later takes its name. All values are decimal unless said otherwise; a device is "major:minor".
//
//	sandbox, container     id (hexadecimal), created (nanoseconds since the epoch)
//	process                pid, startTime (clock ticks since boot)
//	cni-attachment         device, inode, size, modified (nanoseconds since the epoch) of the cache file
//	netns                  inode of the namespace; device and inode of the file where nothing is mounted on it
//	link                   index, peerIndex, peerNamespace (nsid; -1: this namespace), mac, namespace (inode of the peer's)
//	lease                  id (hexadecimal), created (nanoseconds since the epoch)
//	mount                  id, device, root, point, source, type
//	cgroup, pod-directory  device, inode
type Identity map[string]string

// Holder is what keeps an object busy.
type Holder struct {
	PID     int    `json:"pid"`
	Command string `json:"command"`
	How     string `json:"how"` // open-file, cwd, root, mapped, mount-namespace, network-namespace, cgroup
	Pod     Pod    `json:"pod,omitzero"`
}

// Object is one thing on the node, as one pass saw it.
type Object struct {
	Kind        Kind              `json:"kind"`
	ID          string            `json:"id"` // unique in its kind: path, mount point#mount ID, container ID, pid …
	Pod         Pod               `json:"pod"`
	SandboxID   string            `json:"sandboxID,omitempty"`
	ContainerID string            `json:"containerID,omitempty"`
	Identity    Identity          `json:"identity"`
	Facts       map[string]string `json:"facts,omitempty"` // for people and for the action: file system type, state …
	Holders     []Holder          `json:"holders"`
	Foreign     string            `json:"-"` // why it can be no pod's of this kubelet; empty otherwise
	Doubt       string            `json:"-"` // why nothing can be said of it; empty otherwise
	// what of the runtime still carries the sandbox of a lease; empty otherwise
	InUse string `json:"-"`
}

// Verdict is what an inspection says of an object.
type Verdict string

// The verdicts.
const (
	Live      Verdict = "live"      // a witness knows its pod, or it may just be starting
	Leftover  Verdict = "leftover"  // every witness agrees, all gates are open, seen often and long enough
	Candidate Verdict = "candidate" // no witness knows its pod, but that is not yet proof
	Unknown   Verdict = "unknown"   // a witness that is needed could not be heard
	Unowned   Verdict = "unowned"   // all was read and nothing names its pod: reported, never touched
	Foreign   Verdict = "foreign"   // not a pod's of this kubelet: never touched
)

// Answer is what one witness says of one object.
type Answer string

// The answers. An answer may go on after a colon with details.
const (
	Knows    Answer = "knows"
	Denies   Answer = "does not know"
	NotAsked Answer = "not asked"
	NoAnswer Answer = "could not be heard"
)

// Assessment is an object with the verdict on it and how it came about. Its JSON form is a contract.
type Assessment struct {
	Object
	Verdict   Verdict           `json:"verdict"`
	Why       string            `json:"why"`
	Witnesses map[string]Answer `json:"witnesses"`         // apiserver, kubelet, runtime, containerd …
	Running   bool              `json:"running,omitempty"` // its pod has a container that runs: see running.go
	FirstSeen finding.Timestamp `json:"firstSeen,omitzero"`
	Passes    int               `json:"passes,omitempty"`
	Release   string            `json:"release,omitempty"` // what would be done
}

// Gate is a condition on the whole node without which nothing is ever called a leftover.
type Gate struct {
	Name string `json:"name"`
	Open bool   `json:"open"`
	Why  string `json:"why"`
}

// Failure is something that could not be looked at.
type Failure struct {
	What  string `json:"what"`
	Error string `json:"error"`
}

// Report is the outcome of one pass. Its JSON form is a contract.
type Report struct {
	At      finding.Timestamp `json:"at"`
	Objects []Assessment      `json:"objects"`
	Gates   []Gate            `json:"gates"`
	Errors  []Failure         `json:"errors"`
}

// Sighting is what is remembered between passes of an object that no witness knows.
type Sighting struct {
	Identity Identity            `json:"identity"`
	First    finding.Timestamp   `json:"first"`
	Last     finding.Timestamp   `json:"last"`
	Passes   int                 `json:"passes"`            // in which every witness could be believed
	Denials  []finding.Timestamp `json:"denials,omitempty"` // when a fresh LIST of the apiserver did not know it
	Named    NameAnswer          `json:"named,omitzero"`    // of a pod that runs only: see podKey

	// Whose it is, of objects that can outlive what says so: see losesTie.
	Pod       Pod    `json:"pod,omitzero"`
	SandboxID string `json:"sandboxID,omitempty"`
}

// History remembers sightings by kind and ID, and those of pods that run by podKey. It survives restarts of the
// agent, but not of the machine: a new boot begins a new history.
type History map[string]Sighting

// Settings are the thresholds of an inspection.
type Settings struct {
	Every          time.Duration `yaml:"every"`          // interval between passes of the daemon
	Passes         int           `yaml:"passes"`         // a leftover must be seen in so many passes
	Grace          time.Duration `yaml:"grace"`          // … which span at least so long
	ListSpacing    time.Duration `yaml:"listSpacing"`    // the two LISTs that do not know it are so far apart
	RunningSpacing time.Duration `yaml:"runningSpacing"` // … and so far where a container of its pod runs
	KubeletUptime  time.Duration `yaml:"kubeletUptime"`  // kubelet must have been up so long
	RuntimeUptime  time.Duration `yaml:"runtimeUptime"`  // and the runtime
	MassOrphaning  int           `yaml:"massOrphaning"`  // breaker: more orphaned pods than this …
	// … and than this share of all pods on the node, stop everything
	MassPercent    int  `yaml:"massPercent"`
	HostNamespaces bool `yaml:"-"` // the agent sees the host's processes
}
