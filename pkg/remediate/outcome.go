package remediate

import (
	"slices"

	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// Result is how a step, or the release of a pod, ended.
type Result string

// The results.
const (
	Released    Result = "released"    // done and verified; of a pod: a look at the whole node found nothing left
	Vanished    Result = "vanished"    // it was gone before anything was done: its owner did it
	NotActed    Result = "not-acted"   // mode, budget, guard: see why
	Refused     Result = "refused"     // the object itself forbids it, e.g. user data
	Blocked     Result = "blocked"     // something else of the pod has to go first
	Failed      Result = "failed"      // tried, and still there
	Stopped     Result = "stopped"     // the release of the pod was stopped before or during it
	Incomplete  Result = "incomplete"  // of a pod: something is left
	Interrupted Result = "interrupted" // a crash cut it off; told when the next release begins

	// CouldNotTell: whether it is gone, or still a leftover, could not be learnt. Of a pod it ends the release.
	CouldNotTell Result = "could-not-tell"
)

// StepOutcome is how one step ended.
type StepOutcome struct {
	Step
	Result Result `json:"result"`
	Error  string `json:"error,omitempty"`
}

// PodOutcome is how the release of one pod ended.
type PodOutcome struct {
	Group  string        `json:"group"`
	Pod    inspect.Pod   `json:"pod"`
	Result Result        `json:"result"`
	Why    string        `json:"why,omitempty"`
	Steps  []StepOutcome `json:"steps"`
}

// Outcome is how a release ended.
type Outcome struct {
	Stopped string       `json:"stopped,omitempty"` // why nothing, or nothing more, was done
	Busy    bool         `json:"busy,omitempty"`    // it was stopped because another release is running
	Pods    []PodOutcome `json:"pods"`
	CutOff  []Record     `json:"cutOff,omitempty"` // what an earlier crash had cut off
}

// Acted reports whether anything was done or tried.
func (o Outcome) Acted() bool {
	return slices.ContainsFunc(o.Pods, func(pod PodOutcome) bool {
		return slices.ContainsFunc(pod.Steps, func(step StepOutcome) bool {
			return slices.Contains([]Result{Released, Failed, CouldNotTell}, step.Result)
		})
	})
}
