// Package record is what is kept of a pod's life: marks in time, and the few facts of its specification that stages and
// reasons need. It refuses to hold anything else of a pod: no environment value, argument, label or annotation has a
// field here.
package record

import "time"

// Act is one thing that is promised to be done within a time.
type Act string

// The acts of a pod.
const (
	Creation Act = "creation"
	Deletion Act = "deletion"
	Upgrade  Act = "upgrade" // in place: an image or the resources of a running pod are changed
	Refusal  Act = "refusal" // an owner cannot create its pods: from its first refused creation to its next pod
)

// Clock is the machine whose clock made a time.
type Clock string

// The clocks of marks.
const (
	Own       Clock = "own" // there is no other time than the arrival
	APIServer Clock = "apiserver"
	Scheduler Clock = "scheduler"
	Node      Clock = "node"
)

// Mark is a moment: by the clock of its source, and by ours when it arrived at the watch.
type Mark struct {
	Time    time.Time `json:"time,omitzero"`
	Source  Clock     `json:"source,omitempty"`
	Arrival time.Time `json:"arrival,omitzero"`
	// Late means that the arrival is an upper bound only: the watch was behind, or a list showed the mark.
	Late bool `json:"late,omitempty"`
}

// Known reports whether there is such a moment.
func (m Mark) Known() bool { return !m.Arrival.IsZero() }

// Point names a mark of a timeline.
type Point string

// The marks of a pod. Those of its containers and pulls stand there.
const (
	Refused         Point = "refused"  // the first creation that the apiserver refused to the owner
	Admitted        Point = "admitted" // the first pod of the owner after the last refusal
	RefusedLast     Point = "refused-last"
	Created         Point = "created"
	Ungated         Point = "ungated"
	ClaimsBound     Point = "claims-bound"
	Nominated       Point = "nominated"
	Scheduled       Point = "scheduled"
	KubeletSaw      Point = "kubelet-saw" // status.startTime
	Attached        Point = "attached"    // the last SuccessfulAttachVolume
	SandboxReady    Point = "sandbox-ready"
	Initialized     Point = "initialized"
	Running         Point = "running" // phase Running, or a later one after a container had started
	ContainersReady Point = "containers-ready"
	Ready           Point = "ready"
	Failed          Point = "failed" // phase Failed, and no container had started

	DeleteRequested Point = "delete-requested" // deletionTimestamp minus the grace period
	KillNoticed     Point = "kill-noticed"
	ContainersEnded Point = "containers-ended"
	FinalizersGone  Point = "finalizers-gone"
	Gone            Point = "gone"

	ChangeAccepted Point = "change-accepted"
	ChangeNoticed  Point = "change-noticed"
	OldEnded       Point = "old-ended"
	NewStarted     Point = "new-started"
	ReadyAgain     Point = "ready-again"
)

// Container is what is kept of one.
type Container struct {
	Name       string `json:"name"`
	Image      string `json:"image,omitempty"`
	Init       bool   `json:"init,omitempty"`
	Hook       bool   `json:"hook,omitempty"`       // it has a PostStart hook
	MemLimit   bool   `json:"memLimit,omitempty"`   // it has a limit of memory
	Imaged     Mark   `json:"imaged,omitzero"`      // the first status that proves that its image is on the node
	Started    Mark   `json:"started,omitzero"`     // of its first start
	Shown      Mark   `json:"shown,omitzero"`       // the first status that shows it running, or ended after a start
	Exited     Mark   `json:"exited,omitzero"`      // of its last end
	ExitCode   int32  `json:"exitCode,omitempty"`   // of its last end
	ExitReason string `json:"exitReason,omitempty"` // of its last end: OOMKilled, Error, Completed
	Waiting    string `json:"waiting,omitempty"`    // reason of waiting now
	Unhealthy  bool   `json:"unhealthy,omitempty"`  // kubelet reported a probe that failed
	Ready      bool   `json:"ready,omitempty"`
}

// Pull is one of an image.
type Pull struct {
	Container string        `json:"container"`
	Image     string        `json:"image"`
	Began     Mark          `json:"began,omitzero"`
	Ended     Mark          `json:"ended,omitzero"`
	Took      time.Duration `json:"took,omitempty"`   // by kubelet's text, without waiting
	Waited    time.Duration `json:"waited,omitempty"` // behind other pulls
	Bytes     int64         `json:"bytes,omitempty"`
	Cached    bool          `json:"cached,omitempty"`
}

// Error is what a component reported.
type Error struct {
	Mark
	From      string `json:"from"` // reason of the Event, of the waiting container, or of the pod's status
	Container string `json:"container,omitempty"`
	Text      string `json:"text,omitempty"`
}

// Surroundings are the state of others at the time of the judgement.
type Surroundings struct {
	NodeLost        bool `json:"nodeLost,omitempty"`
	SchedulerStale  bool `json:"schedulerStale,omitempty"`  // its Lease is not renewed
	ExceedsNodes    bool `json:"exceedsNodes,omitempty"`    // the requests exceed the allocatable of each node
	FaultTaints     bool `json:"faultTaints,omitempty"`     // nodes have taints of faults
	VictimsPresent  bool `json:"victimsPresent,omitempty"`  // pods that were preempted for this one are still there
	ControllerStale bool `json:"controllerStale,omitempty"` // the Lease of the controller-manager is not renewed
}

// Timeline is what is known of one act of one pod.
type Timeline struct {
	Act            Act                     `json:"act"`
	UID            string                  `json:"uid"`
	Generation     int64                   `json:"generation,omitempty"` // of an upgrade: which change
	Namespace      string                  `json:"namespace"`
	Name           string                  `json:"name"`
	Node           string                  `json:"node,omitempty"`
	OwnerKind      string                  `json:"ownerKind,omitempty"`
	OwnerName      string                  `json:"ownerName,omitempty"`
	RestartAlways  bool                    `json:"restartAlways,omitempty"`
	Gated          bool                    `json:"gated,omitempty"` // it was created with scheduling gates
	Volumes        bool                    `json:"volumes,omitempty"`
	Grace          time.Duration           `json:"grace,omitempty"`
	CPU            int64                   `json:"cpu,omitempty"`      // requested, in thousandths of a core
	Bytes          int64                   `json:"bytes,omitempty"`    // requested memory
	Refusals       int                     `json:"refusals,omitempty"` // of an owner: refused creations
	ReadinessGates []string                `json:"readinessGates,omitempty"`
	Finalizers     []string                `json:"finalizers,omitempty"` // those that are left
	Exclude        string                  `json:"exclude,omitempty"`    // why its verdict is "excluded"
	Marks          map[Point]Mark          `json:"marks"`
	Containers     []Container             `json:"containers,omitempty"`
	Pulls          []Pull                  `json:"pulls,omitempty"`
	Errors         []Error                 `json:"errors,omitempty"`
	Disruption     string                  `json:"disruption,omitempty"` // reason of the condition DisruptionTarget
	Around         Surroundings            `json:"around,omitzero"`
	Skews          map[Clock]time.Duration `json:"skews,omitempty"` // our clock minus the source's, if it was measured
}

// maxErrors and maxText bound what one pod can make us keep.
const (
	maxErrors = 32
	maxPulls  = 64
	maxText   = 1024
)

// At returns a mark; one that is not Known if there is none.
func (t *Timeline) At(p Point) Mark { return t.Marks[p] }

// Set keeps the first mark of a point.
func (t *Timeline) Set(p Point, m Mark) {
	if t.Marks == nil {
		t.Marks = map[Point]Mark{}
	}
	if _, ok := t.Marks[p]; !ok && m.Known() {
		t.Marks[p] = m
	}
}

// AddError keeps an error. One that is repeated keeps its first mark and has the newest text; of too many, the oldest
// goes.
func (t *Timeline) AddError(e Error) {
	e.Text = Clip(e.Text, maxText)
	for i, old := range t.Errors {
		if old.From == e.From && old.Container == e.Container {
			if old.Text == e.Text {
				return
			}
			if e.From == "FailedScheduling" || t.Act == Refusal { // the last one decides
				t.Errors[i].Text = e.Text
				return
			}
		}
	}
	if len(t.Errors) >= maxErrors {
		t.Errors = append(t.Errors[:0], t.Errors[1:]...)
	}
	t.Errors = append(t.Errors, e)
}

// PullOf returns the pull of a container's image, a new one if there is none; nil if there are too many.
func (t *Timeline) PullOf(container, image string) *Pull {
	for i := range t.Pulls {
		if t.Pulls[i].Container == container && t.Pulls[i].Image == image {
			return &t.Pulls[i]
		}
	}
	if len(t.Pulls) >= maxPulls {
		return nil
	}
	t.Pulls = append(t.Pulls, Pull{Container: container, Image: image})
	return &t.Pulls[len(t.Pulls)-1]
}

// Container returns the one of that name, nil if there is none.
func (t *Timeline) Container(name string) *Container {
	for i := range t.Containers {
		if t.Containers[i].Name == name {
			return &t.Containers[i]
		}
	}
	return nil
}

// Begin is the mark that the promised time runs from.
func (t *Timeline) Begin() Mark {
	switch t.Act {
	case Deletion:
		return t.At(DeleteRequested)
	case Upgrade:
		return t.At(ChangeAccepted)
	case Refusal:
		return t.At(Refused)
	}
	return t.At(Created)
}

// End is the mark that fulfils the promise.
func (t *Timeline) End() Mark {
	switch {
	case t.Act == Deletion:
		return t.At(Gone)
	case t.Act == Upgrade:
		return t.At(ReadyAgain)
	case t.Act == Refusal:
		return t.At(Admitted)
	case t.RestartAlways:
		return t.At(Ready)
	}
	return t.At(Running)
}

// Clip shortens a text to at most n bytes, and never cuts a rune in two.
func Clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && text[n]&0xC0 == 0x80 {
		n--
	}
	return text[:n]
}
