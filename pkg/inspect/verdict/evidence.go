package verdict

import (
	"errors"
	"io/fs"
	"maps"
	"slices"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// Evidence is the complete input of one pass's evaluation. Evaluating it again gives the same verdicts, on any machine.
// It has its own JSON form (evidence_json.go), which keeps the parts that the contract of reports omits.
type Evidence struct {
	Objects   []object.Object // with the holders found after the evaluation
	Inventory witness.Inventory
	History   object.History // before the pass
	Settings  object.Settings
	Now       finding.Timestamp
	Failures  []object.Failure // parts that could not be read: Report.Errors
}

// Evaluate evaluates the evidence as the pass did, and returns the history after it.
func (e Evidence) Evaluate() (object.Report, object.History) {
	report, next := Evaluate(e.Objects, e.Inventory, e.History, e.Settings, e.Now)
	report.Errors = append(report.Errors, e.Failures...)
	return report, next
}

// WithoutLiving returns the evidence without the objects that kubelet knows or that cannot belong to it, and without
// their history. They do not affect the verdicts on others, except those that show whether kubelet has ended a pod,
// which stay: directories of kubelet's pods, and objects that name the pod of a suspect. It also returns how many
// objects it left out.
func (e Evidence) WithoutLiving() (Evidence, int) {
	all := len(e.Objects)
	report, _ := e.Evaluate()
	verdicts := make(map[string]object.Verdict, all)
	for i := range report.Objects {
		verdicts[object.Key(&report.Objects[i].Object)] = report.Objects[i].Verdict
	}
	inventory := e.Inventory
	inventory.ResolveNames()
	suspects := make(map[string]bool) // UIDs of pods
	for i := range e.Objects {
		if o := &e.Objects[i]; suspicious(o, &inventory, e.History.Seen(o, e.Now).First) {
			suspects[o.Pod.UID] = true
		}
	}
	history := maps.Clone(e.History)
	e.Objects = slices.DeleteFunc(slices.Clone(e.Objects), func(o object.Object) bool {
		verdict := verdicts[object.Key(&o)]
		out := (verdict == object.Live || verdict == object.Foreign) && !suspects[o.Pod.UID] &&
			(o.Kind != object.PodDirectory || !witness.HasPod(inventory.Kubelet.Pods, o.Pod.UID))
		if out {
			delete(history, object.Key(&o))
		}
		return out
	})
	e.History = history
	return e, all - len(e.Objects)
}

// RecordedError is the recorded form of an error.
type RecordedError struct {
	Text  string   `json:"text"`
	Kinds []string `json:"kinds,omitempty"` // of recordedKinds
}

func (e *RecordedError) Error() string { return e.Text }

// Is reports whether the recorded error was target.
func (e *RecordedError) Is(target error) bool {
	for name, kind := range recordedKinds() {
		if target == kind { //nolint:errorlint // the sentinel itself
			return slices.Contains(e.Kinds, name)
		}
	}
	return false
}

// recordedKinds are the errors that an evaluation or a screen distinguishes.
func recordedKinds() map[string]error {
	return map[string]error{"not-configured": hosterr.ErrNotConfigured, "forbidden": hosterr.ErrForbidden,
		"no-metric": witness.ErrNoMetric, "refused": fs.ErrPermission}
}

// RecordError returns the recorded form of err; nil for nil.
func RecordError(err error) *RecordedError {
	if err == nil {
		return nil
	}
	recorded := &RecordedError{Text: err.Error()}
	kinds := recordedKinds()
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		if errors.Is(err, kinds[name]) {
			recorded.Kinds = append(recorded.Kinds, name)
		}
	}
	return recorded
}
