package release

import (
	"slices"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Result is how a step, or the release of a pod, ended.
type Result string

// The results.
const (
	// done and verified; of a pod: an inspection of the whole node found no objects left
	Released    Result = "released"
	Vanished    Result = "vanished"    // it was gone before any change: its owner removed it
	NotActed    Result = "not-acted"   // mode, budget, guard: see the reason
	Refused     Result = "refused"     // because of the object itself, e.g. user data
	Blocked     Result = "blocked"     // something else of the pod must be released first
	Failed      Result = "failed"      // tried, but it still exists
	Stopped     Result = "stopped"     // the release of the pod was stopped before or during it
	Incomplete  Result = "incomplete"  // of a pod: something is left
	Interrupted Result = "interrupted" // by a crash; reported when the next release begins

	// CouldNotTell means that it is unknown whether the object is gone or still a leftover. It ends the release of a
	// pod.
	CouldNotTell Result = "could-not-tell"
)

// StepOutcome is how one step ended.
type StepOutcome struct {
	Step
	Result Result `json:"result"`
	Error  string `json:"error,omitempty"`

	unbegun bool // it failed before any change: that is no failure of the release
}

// PodOutcome is how the release of one pod ended.
type PodOutcome struct {
	Group  string        `json:"group"`
	Pod    object.Pod    `json:"pod"`
	Result Result        `json:"result"`
	Why    string        `json:"why,omitempty"`
	Steps  []StepOutcome `json:"steps"`
}

// Outcome is how a release ended.
type Outcome struct {
	Stopped string       `json:"stopped,omitempty"` // why no steps, or no more steps, were done
	Busy    bool         `json:"busy,omitempty"`    // it was stopped because another release is running
	Unknown bool         `json:"unknown,omitempty"` // stopped because a guard could not be asked
	Pods    []PodOutcome `json:"pods"`
	CutOff  []Record     `json:"cutOff,omitempty"` // steps interrupted by an earlier crash
}

// Acted reports whether any step was done or attempted.
func (o Outcome) Acted() bool {
	return slices.ContainsFunc(o.Pods, func(pod PodOutcome) bool {
		return slices.ContainsFunc(pod.Steps, func(step StepOutcome) bool {
			return slices.Contains([]Result{Released, Failed, CouldNotTell}, step.Result)
		})
	})
}
