// Package object has the objects that pods can leave on a node, as plain data: kinds, identities, verdicts, and the
// history that passes share.
package object

import (
	"github.com/nodeagent/nodeagent/internal/host"
)

// Pod names the pod that an object belongs to, as far as the object itself shows it. UID is kubelet's: for a static pod
// the one that is used on the node.
type Pod struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

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

// HasEnded reports whether the runtime has ended a sandbox or a container. A lease is no sign of a running pod.
func (o *Object) HasEnded() bool {
	return o.Kind == Lease || o.Kind == Sandbox && o.Facts["state"] == "NOTREADY" ||
		o.Kind == Container && o.Facts["state"] == "EXITED"
}

// IsDead reports whether o is a zombie. It holds only its PID; cgroup v2 still lists it. With threads left, only its main
// thread has ended, and it holds all that they hold.
func (o *Object) IsDead() bool {
	return o.Kind == Process && o.Facts["threads"] == "" && (o.Facts["state"] == "Z" || o.Facts["state"] == "X")
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
