// Package record is the recorded part of a pod's life: marks in time, and the few facts of its specification that
// stages and reasons need. It has no fields for other data of a pod: no environment value, argument, label or
// annotation.
package record

import (
	"hash/fnv"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Act is an operation with a promised duration.
type Act string

// The acts of a pod.
const (
	Creation Act = "creation"
	Deletion Act = "deletion"
	Upgrade  Act = "upgrade" // in place: an image or the resources change; or a new pod replaces the old one
	Refusal  Act = "refusal" // an owner cannot create its pods: from its first refused creation to its next pod
)

// Clock identifies the machine whose clock measured a time.
type Clock string

// The clocks of marks.
const (
	Own       Clock = "own" // the arrival is the only time
	APIServer Clock = "apiserver"
	Scheduler Clock = "scheduler"
	Node      Clock = "node"
)

// Mark is a moment: by its source's clock, and by ours when it arrived at the watch.
type Mark struct {
	Time    time.Time `json:"time,omitzero"`
	Source  Clock     `json:"source,omitempty"`
	Arrival time.Time `json:"arrival,omitzero"`
	// Late means that the arrival is only an upper bound: the watch was behind, or a list showed the mark.
	Late bool `json:"late,omitempty"`
}

// Known reports whether the mark is set.
func (m Mark) Known() bool { return !m.Arrival.IsZero() }

// By reports whether the mark is set, and arrived until a time.
func (m Mark) By(at time.Time) bool { return m.Known() && !m.Arrival.After(at) }

// Set sets the mark unless it is set.
func (m *Mark) Set(to Mark) {
	if !m.Known() {
		*m = to
	}
}

// Point names a mark of a timeline.
type Point string

// The marks of a pod. Container and Pull have their own.
const (
	Refused         Point = "refused"  // the owner's first creation refused by the apiserver
	Admitted        Point = "admitted" // the owner's first pod after the last refusal
	RefusedLast     Point = "refused-last"
	Created         Point = "created"
	Ungated         Point = "ungated"
	Nominated       Point = "nominated"
	Scheduled       Point = "scheduled"
	KubeletSaw      Point = "kubelet-saw" // status.startTime
	Attached        Point = "attached"    // the last SuccessfulAttachVolume
	Mounted         Point = "mounted"     // all volumes; by the node's agent
	SandboxReady    Point = "sandbox-ready"
	Initialized     Point = "initialized"
	Running         Point = "running" // phase Running, or a later phase after the start of a container
	ContainersReady Point = "containers-ready"
	Ready           Point = "ready"
	Failed          Point = "failed" // phase Failed without the start of a container

	DeleteRequested Point = "delete-requested" // deletionTimestamp minus the grace period
	KillNoticed     Point = "kill-noticed"
	ContainersEnded Point = "containers-ended"
	SandboxStopped  Point = "sandbox-stopped" // by the node's agent
	Unmounted       Point = "unmounted"       // by the node's agent
	FinalizersGone  Point = "finalizers-gone"
	Gone            Point = "gone"

	ChangeAccepted Point = "change-accepted"
	ChangeNoticed  Point = "change-noticed"
	OldEnded       Point = "old-ended"
	NewStarted     Point = "new-started"
	ReadyAgain     Point = "ready-again"
)

// Container is the recorded part of a container.
type Container struct {
	Name       string `json:"name"`
	Image      string `json:"image,omitempty"`
	Init       bool   `json:"init,omitempty"`
	Hook       bool   `json:"hook,omitempty"`       // with a PostStart hook
	MemLimit   bool   `json:"memLimit,omitempty"`   // with a memory limit
	Imaged     Mark   `json:"imaged,omitzero"`      // the first status that proves that the node has its image
	Started    Mark   `json:"started,omitzero"`     // of its first start
	Shown      Mark   `json:"shown,omitzero"`       // the first status that shows it running, or exited after a start
	Exited     Mark   `json:"exited,omitzero"`      // of its last end
	ExitCode   int32  `json:"exitCode,omitempty"`   // of its last end
	ExitReason string `json:"exitReason,omitempty"` // of its last end: OOMKilled, Error, Completed
	Unhealthy  bool   `json:"unhealthy,omitempty"`  // kubelet reported a failed probe
	Ready      bool   `json:"ready,omitempty"`
}

// StartFailed reports whether the runtime could not start the program.
func (c *Container) StartFailed() bool {
	return c.ExitReason == "StartError" || c.ExitReason == "ContainerCannotRun"
}

// Pull is the pull of an image.
type Pull struct {
	Container string        `json:"container"`
	Image     string        `json:"image"`
	Began     Mark          `json:"began,omitzero"`
	Ended     Mark          `json:"ended,omitzero"`
	Took      time.Duration `json:"took,omitempty"`   // by kubelet's text, without waiting
	Waited    time.Duration `json:"waited,omitempty"` // for other pulls
	Bytes     int64         `json:"bytes,omitempty"`
	Cached    bool          `json:"cached,omitempty"`
}

// Error is an error reported by a component.
type Error struct {
	Mark
	From      string `json:"from"` // reason of the Event, of the waiting container, or of the pod's status
	Container string `json:"container,omitempty"`
	Text      string `json:"text,omitempty"`
}

// Surroundings are the state of other objects at the time of the judgement.
type Surroundings struct {
	NodeLost       bool `json:"nodeLost,omitempty"`
	SchedulerStale bool `json:"schedulerStale,omitempty"` // its Lease is not renewed
	ExceedsNodes   bool `json:"exceedsNodes,omitempty"`   // the requests exceed every node's allocatable
	FaultTaints    bool `json:"faultTaints,omitempty"`    // nodes have taints for faults
	VictimsPresent bool `json:"victimsPresent,omitempty"` // it is nominated for a node and not bound yet
}

// NodeSays is the report of the node's agent about a late pod.
type NodeSays struct {
	Mark
	Stage    string   `json:"stage,omitempty"` // the step that the pod waited for; empty: the act had ended
	Text     string   `json:"text,omitempty"`
	Findings []string `json:"findings,omitempty"` // active on the node: CHECK/REASON/KIND/NAME
}

// Fresh reports whether the node's word is from shortly before a moment.
func (n NodeSays) Fresh(now time.Time) bool {
	return n.Stage != "" && n.Known() && now.Sub(n.Arrival).Abs() < time.Minute
}

// Timeline is the record of an act of a pod.
type Timeline struct {
	Act            Act                     `json:"act"`
	UID            string                  `json:"uid"`
	Generation     int64                   `json:"generation,omitempty"` // of an upgrade: which change
	Namespace      string                  `json:"namespace"`
	Name           string                  `json:"name"`
	Node           string                  `json:"node,omitempty"`
	OwnerKind      string                  `json:"ownerKind,omitempty"`
	OwnerName      string                  `json:"ownerName,omitempty"`
	OwnerUID       string                  `json:"ownerUID,omitempty"` // of the controller
	RestartAlways  bool                    `json:"restartAlways,omitempty"`
	Gated          bool                    `json:"gated,omitempty"` // created with scheduling gates
	Volumes        bool                    `json:"volumes,omitempty"`
	Grace          time.Duration           `json:"grace,omitempty"`
	CPU            int64                   `json:"cpu,omitempty"`      // requests, in thousandths of a core
	Bytes          int64                   `json:"bytes,omitempty"`    // memory requests
	Refusals       int                     `json:"refusals,omitempty"` // an owner's refused creations
	ReadinessGates []string                `json:"readinessGates,omitempty"`
	Finalizers     []string                `json:"finalizers,omitempty"` // the remaining ones
	Exclude        string                  `json:"exclude,omitempty"`    // why the verdict is "excluded"
	Replaces       string                  `json:"replaces,omitempty"`   // of an upgrade by replacement: the UID of the old pod
	Awaits         bool                    `json:"awaits,omitempty"`     // of a deletion: a pod may replace this one
	Marks          map[Point]Mark          `json:"marks"`
	Containers     []Container             `json:"containers,omitempty"`
	Pulls          []Pull                  `json:"pulls,omitempty"`
	Errors         []Error                 `json:"errors,omitempty"`
	NoEvents       bool                    `json:"noEvents,omitempty"`   // Events could not be read at the judgement
	Disruption     string                  `json:"disruption,omitempty"` // reason of the condition DisruptionTarget
	Build          int64                   `json:"build,omitempty"`      // ID of the node's Build; 0: not known
	Around         Surroundings            `json:"around,omitzero"`
	Says           NodeSays                `json:"nodeSays,omitzero"`
	Skews          map[Clock]time.Duration `json:"skews,omitempty"` // our clock minus the source's, if measured
}

// maxErrors and maxText limit what one pod can make us store.
const (
	maxErrors = 32
	maxPulls  = 64
	maxText   = 1024
)

// At returns a mark; if it is not set, it is not Known.
func (t *Timeline) At(p Point) Mark { return t.Marks[p] }

// Set sets a mark unless it is already set.
func (t *Timeline) Set(p Point, m Mark) {
	if t.Marks == nil {
		t.Marks = map[Point]Mark{}
	}
	if _, ok := t.Marks[p]; !ok && m.Known() {
		t.Marks[p] = m
	}
}

// AddError adds an error. A repeated error keeps its first mark and gets the newest text; beyond the limit, the oldest
// is dropped.
func (t *Timeline) AddError(e Error) {
	e.Text = finding.Clip(e.Text, maxText)
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
		t.Errors = slices.Delete(t.Errors, 0, 1)
	}
	t.Errors = append(t.Errors, e)
}

// PullOf returns the pull of a container's image, a new one if there is none. If there are too many, the timeline does not keep it.
func (t *Timeline) PullOf(c *Container) *Pull {
	p := find(t.Pulls, func(p *Pull) bool { return p.Container == c.Name && p.Image == c.Image })
	switch {
	case p != nil:
		return p
	case len(t.Pulls) >= maxPulls:
		return &Pull{}
	}
	t.Pulls = append(t.Pulls, Pull{Container: c.Name, Image: c.Image})
	return &t.Pulls[len(t.Pulls)-1]
}

// FirstPull returns the first pull for a container, nil if there is none.
func (t *Timeline) FirstPull(container string) *Pull {
	return find(t.Pulls, func(p *Pull) bool { return p.Container == container })
}

// Container returns the container of a name, nil if there is none.
func (t *Timeline) Container(name string) *Container {
	return find(t.Containers, func(c *Container) bool { return c.Name == name })
}

func find[T any](all []T, is func(*T) bool) *T {
	for i := range all {
		if is(&all[i]) {
			return &all[i]
		}
	}
	return nil
}

// Begin is the mark at which the promised time starts.
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

// InPlace reports whether the act is an upgrade of the same pod.
func (t *Timeline) InPlace() bool { return t.Act == Upgrade && t.Replaces == "" }

// End is the mark that fulfils the promise.
func (t *Timeline) End() Mark {
	switch {
	case t.Act == Deletion:
		return t.At(Gone)
	case t.InPlace():
		return t.At(ReadyAgain)
	case t.Act == Refusal:
		return t.At(Admitted)
	case t.RestartAlways:
		return t.At(Ready)
	}
	return t.At(Running)
}

// Build is the software responsible for the pods of a node, and the pool of the node. An unknown part is empty.
type Build struct {
	Pool      string `json:"pool,omitempty"`
	Kubelet   string `json:"kubelet,omitempty"`
	Runtime   string `json:"runtime,omitempty"`
	System    string `json:"system,omitempty"`  // OS image and kernel
	Network   string `json:"network,omitempty"` // images of the DaemonSets that set up networks
	Storage   string `json:"storage,omitempty"` // and of CSI drivers
	Scheduler string `json:"scheduler,omitempty"`
	Apiserver string `json:"apiserver,omitempty"`
}

// ID returns the number under which the build is stored.
func (b Build) ID() int64 {
	h := fnv.New64a()
	for _, s := range []string{b.Pool, b.Kubelet, b.Runtime, b.System, b.Network, b.Storage, b.Scheduler, b.Apiserver} {
		_, _ = h.Write([]byte(s))
		_, _ = h.Write([]byte{0})
	}
	return int64(h.Sum64()) //nolint:gosec // only compared
}

// coarse is the resolution of Kubernetes' own timestamps.
const coarse = time.Second

// unbounded stands for an arbitrarily distant past.
const unbounded = 10 * 365 * 24 * time.Hour

// Span is a duration with its bounds: it lies between Low and High. Low is never negative.
type Span struct {
	Low, High time.Duration
}

// Middle returns the best estimate.
func (s Span) Middle() time.Duration {
	if s.High >= unbounded/2 {
		return s.Low
	}
	return (s.Low + s.High) / 2
}

// Uncertainty is the maximum distance of the true value from Middle.
func (s Span) Uncertainty() time.Duration {
	if s.High >= unbounded/2 {
		return s.High
	}
	return (s.High - s.Low) / 2
}

// ours returns the bounds of a mark in our clock.
func (t *Timeline) ours(m Mark) (low, high time.Time) {
	if !m.Late {
		return m.Arrival, m.Arrival
	}
	skew, measured := t.Skews[m.Source]
	if m.Time.IsZero() || m.Source == Own || !measured {
		return m.Arrival.Add(-unbounded), m.Arrival
	}
	high = Earlier(m.Time.Add(skew+coarse), m.Arrival)
	return Earlier(m.Time.Add(skew-coarse), high), high
}

// Earlier returns the earlier of two times.
func Earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// ByOurs returns the time from one mark to another by our own clock: verdicts depend on it.
func (t *Timeline) ByOurs(from, to Mark) Span {
	fromLow, fromHigh := t.ours(from)
	toLow, toHigh := t.ours(to)
	return Span{max(0, toLow.Sub(fromHigh)), max(0, toHigh.Sub(fromLow))}
}

// Between returns the time from one mark to another. It uses the marks' clock if they share one, since delays on the
// way to us do not affect it; otherwise ours.
func (t *Timeline) Between(from, to Mark) Span {
	if from.Source != to.Source || from.Source == Own || from.Time.IsZero() || to.Time.IsZero() {
		return t.ByOurs(from, to)
	}
	d, resolution := to.Time.Sub(from.Time), time.Duration(0)
	if from.Time.Nanosecond() == 0 || to.Time.Nanosecond() == 0 {
		resolution = coarse
	}
	return Span{max(0, d-resolution), max(0, d+resolution)}
}

// Passed returns the time from a mark to a moment of our clock.
func (t *Timeline) Passed(from Mark, now time.Time) Span {
	return t.ByOurs(from, Mark{Source: Own, Arrival: now})
}
