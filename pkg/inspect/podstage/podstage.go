// Package podstage answers for one pod why it is stuck: its stage, since when, the blocker, the holder, and the next
// step. It is a pure function of facts gathered by pkg/inspect/podfacts. A fact that could not be read makes the answer
// "could not tell", and is named; it never becomes a wrong stage.
package podstage

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host/podstate"
)

// Stage is the stage of a pod. The values are a contract.
type Stage string

// The stages, in the order in which a pod goes through them.
const (
	NoSuchPod        Stage = "no-such-pod"
	NotBoundHere     Stage = "not-bound-here"     // on another node, or on none yet
	UnknownToKubelet Stage = "unknown-to-kubelet" // bound here, but kubelet has not got it
	NoTrace          Stage = "no-trace"           // runs by its status, but has no objects on the node
	Begin            Stage = "not-begun"          // kubelet has got it and has not begun to work on it
	Volumes          Stage = "volumes"
	Sandbox          Stage = "sandbox"
	Image            Stage = "image"
	InitContainer    Stage = "init-container"
	Container        Stage = "container"
	NotReady         Stage = "not-ready"
	Healthy          Stage = "healthy"
	Completed        Stage = "completed"
	Failed           Stage = "failed"
	GracePeriod      Stage = "terminating-grace-period"
	EndContainer     Stage = "terminating-container"
	EndSandbox       Stage = "terminating-sandbox"
	EndVolumes       Stage = "terminating-volumes"
	EndFinalizers    Stage = "terminating-finalizers"
	EndRelease       Stage = "terminating-release" // waits only for kubelet's confirmation
	LeftBehind       Stage = "left-behind"         // gone from the apiserver, but has objects here
	CouldNotTell     Stage = "could-not-tell"
)

// Verdict is the meaning of an answer.
type Verdict string

// The verdicts.
const (
	Fine    Verdict = "fine"
	Waiting Verdict = "waiting" // it makes progress, or still has time
	Stuck   Verdict = "stuck"
	Unknown Verdict = "unknown" // a necessary source did not answer
)

// Answer is why a pod is stuck. Its JSON form is a contract. Foreign text is sanitized.
type Answer struct {
	Namespace string     `json:"namespace"`
	Name      string     `json:"name"`
	UID       string     `json:"uid,omitempty"` // the pod's UID on the node
	Verdict   Verdict    `json:"verdict"`
	Stage     Stage      `json:"stage"`
	Since     time.Time  `json:"since,omitzero"`
	Blocker   string     `json:"blocker"` // the condition that the pod waits for
	Holder    string     `json:"holder"`  // who keeps it; empty: none found
	Next      string     `json:"next"`    // the next step
	Evidence  []Evidence `json:"evidence"`
}

// Evidence is one source's statement about the pod, or why there is none.
type Evidence struct {
	Source string `json:"source"`
	Text   string `json:"says"`
	Failed bool   `json:"failed,omitempty"` // it did not answer
}

// Source is one list of pods, searched for the pod.
type Source struct {
	Asked bool
	Pod   *corev1.Pod // nil: there is none of that name
	Err   error
}

// has reports whether the source has the pod; lacks that it answered and does not.
func (s Source) has() bool   { return s.Asked && s.Err == nil && s.Pod != nil }
func (s Source) lacks() bool { return s.Asked && s.Err == nil && s.Pod == nil }

// Facts are the known facts about one pod. The zero value of a part means that it was not read.
type Facts struct {
	Node            string // the name of this node
	Now             time.Time
	Namespace, Name string
	UID             string   // of the pod on the node, by the best source; empty if none has it
	Earlier         []string // UIDs of earlier pods of the same name with objects here

	Apiserver Source // of the pods of this node
	Elsewhere Source // of the cluster's pods; asked if the node has none
	Kubelet   Source

	Runtime Runtime
	Local   Local
	Objects []Object
	Claims  []Claim
	Drivers Drivers
	Events  []corev1.Event // of the pod, in any order
	// EventsErr is why they could not be read: most agents lack the right.
	EventsErr error
}

// Runtime holds the container runtime's objects of the pod.
type Runtime struct {
	Asked           bool
	Err             error
	Name            string // of the unit to check: containerd, crio
	Sandboxes       []*cri.PodSandbox
	Containers      []*cri.Container
	NetworkNotReady string          // why; empty while its network is ready, or unknown
	Images          map[string]bool // whether an image is on the node, for those checked
}

func (r Runtime) answered() bool { return r.Asked && r.Err == nil }

// Local holds the pod's traces in the node's files.
type Local struct {
	Directory      string // kubelet's, if it exists
	DirectoryErr   error
	Mounts         []Mount
	MountsErr      error
	Missing        []string // volumes that are not set up
	MissingErr     error
	Cgroups        []string // paths
	CgroupsErr     error
	Frozen         string // a frozen one of them
	Thaw           string // the command that thaws it
	Processes      []podstate.Process
	Attachments    []string // of CNI: network and address
	AttachmentsErr error
	HoldersErr     error // why the search for holders is not complete
}

// Mount is one mount in the directory of the pod, with those that keep it busy.
type Mount struct {
	Point, FSType, Source string
	Holders               []Holder
}

// Holder is a process that keeps a mount busy.
type Holder struct {
	PID     int
	Command string
	How     string // open-file, cwd, root, mapped, mount-namespace
	Pod     string // name, or else UID; empty if it is in none
}

// Object is a ConfigMap or Secret that a volume needs.
type Object struct {
	Kind, Name, Volume string
	Exists             bool
	Err                error
}

// Claim is a PersistentVolumeClaim of the pod, and the state of its volume.
type Claim struct {
	Volume, Name string
	Phase        string // of the claim
	PV, Driver   string // empty: not bound, or no CSI volume
	Attachment   string // VolumeAttachment; empty if there is none
	Attached     bool
	Attaching    string // the error of the attacher
	Missing      string // the missing object among these
	Err          error
}

// Drivers are the CSI drivers registered on the node.
type Drivers struct {
	Asked      bool
	Err        error
	Registered []string
}

// Evaluate answers why a pod is stuck.
func Evaluate(f Facts) Answer {
	a := f.answer()
	a.Namespace, a.Name, a.UID = f.Namespace, f.Name, f.UID
	a.Evidence = f.evidence()
	if a.Verdict == Stuck && a.Next == "" {
		a.Next = f.kubectl("describe pod " + f.Name)
	}
	a.sanitize()
	return a
}

func (f Facts) answer() Answer {
	pod, err := f.known()
	switch {
	case pod == nil && err != nil && !f.hasTraces():
		return Answer{Verdict: Unknown, Stage: CouldNotTell,
			Blocker: "neither the apiserver nor kubelet could be asked for the pod: " + err.Error(),
			Next:    "give the agent what is missing (docs/security.md), or: " + f.kubectl("describe pod "+f.Name)}
	case pod == nil && err != nil:
		return Answer{Verdict: Unknown, Stage: CouldNotTell,
			Blocker: "something of it is on this node, but whether it still belongs here could not be asked: " +
				err.Error(),
			Next: "give the agent what is missing (docs/security.md), or: " + f.kubectl("describe pod "+f.Name)}
	case pod == nil:
		return f.absent()
	case f.Apiserver.lacks(): // kubelet has it, the apiserver does not: deleted by force, or static without a mirror
		return f.absent()
	case pod.DeletionTimestamp != nil:
		return f.ending(pod)
	case podstate.IsFinished(pod):
		return f.finished(pod)
	case f.Kubelet.lacks(), f.notReceived(pod):
		return f.unknownToKubelet(pod)
	}
	return f.begun(pod)
}

// known returns the pod from the best source that has it; if none has it, why one could not be asked.
func (f Facts) known() (*corev1.Pod, error) {
	if f.Apiserver.has() {
		return f.Apiserver.Pod, nil
	}
	if f.Kubelet.has() {
		return f.Kubelet.Pod, nil
	}
	return nil, f.Apiserver.Err
}

// hasTraces reports whether the node has any object of the pod.
func (f Facts) hasTraces() bool {
	l := f.Local
	return len(f.Runtime.Sandboxes)+len(f.Runtime.Containers)+len(l.Mounts)+len(l.Cgroups)+len(l.Attachments) > 0 ||
		l.Directory != ""
}

// tracesRead reports whether every place of possible traces was read.
func (f Facts) tracesRead() bool {
	return f.Runtime.answered() && f.Local.DirectoryErr == nil && f.Local.CgroupsErr == nil
}
