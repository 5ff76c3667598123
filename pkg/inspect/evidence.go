package inspect

import (
	"errors"
	"io/fs"
	"maps"
	"slices"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Evidence is the complete input of one pass's evaluation. Evaluating it again gives the same verdicts, on any machine.
// It has its own JSON form (evidence_json.go), which keeps the parts that the contract of reports omits.
type Evidence struct {
	Objects   []Object // with the holders found after the evaluation
	Inventory Inventory
	History   History // before the pass
	Settings  Settings
	Now       finding.Timestamp
	Failures  []Failure // parts that could not be read: Report.Errors
}

// Evaluate evaluates the evidence as the pass did, and returns the history after it.
func (e Evidence) Evaluate() (Report, History) {
	report, next := Evaluate(e.Objects, e.Inventory, e.History, e.Settings, e.Now)
	report.Errors = append(report.Errors, e.Failures...)
	return report, next
}

// Sighting returns the history's entry about an object; zero if there is none.
func (h History) Sighting(o Object) Sighting { return h[key(&o)] }

// OfRunningPod returns the history's entry about a suspect pod with a running container; zero if there is none.
func (h History) OfRunningPod(uid string) Sighting { return h[podKey(uid)] }

// GateApplies reports whether a closed gate matters for objects of a kind.
func GateApplies(g Gate, kind Kind) bool { return g.Name != networkReady || kind.networked() }

// WithoutLiving returns the evidence without the objects that kubelet knows or that cannot belong to it, and without
// their history. They do not affect the verdicts on others, except those that show whether kubelet has ended a pod,
// which stay: directories of kubelet's pods, and objects that name the pod of a suspect. It also returns how many
// objects it left out.
func (e Evidence) WithoutLiving() (Evidence, int) {
	all := len(e.Objects)
	report, _ := e.Evaluate()
	verdicts := make(map[string]Verdict, all)
	for i := range report.Objects {
		verdicts[key(&report.Objects[i].Object)] = report.Objects[i].Verdict
	}
	inventory := e.Inventory
	inventory.resolveNames()
	suspects := make(map[string]bool) // UIDs of pods
	for i := range e.Objects {
		if o := &e.Objects[i]; suspicious(o, &inventory, e.History.seen(o, e.Now).First) {
			suspects[o.Pod.UID] = true
		}
	}
	history := maps.Clone(e.History)
	e.Objects = slices.DeleteFunc(slices.Clone(e.Objects), func(o Object) bool {
		verdict := verdicts[key(&o)]
		out := (verdict == Live || verdict == Foreign) && !suspects[o.Pod.UID] &&
			(o.Kind != PodDirectory || !hasPod(inventory.Kubelet.Pods, o.Pod.UID))
		if out {
			delete(history, key(&o))
		}
		return out
	})
	e.History = history
	return e, all - len(e.Objects)
}

// Recording makes each pass call record with its evidence. record must not change it.
func (i *Inspector) Recording(record func(Evidence)) *Inspector {
	i.record = record
	return i
}

// recordPass records the evidence of a pass with its report.
func (i *Inspector) recordPass(report Report, inventory Inventory, history History) {
	if i.record == nil {
		return
	}
	objects := make([]Object, 0, len(report.Objects))
	for n := range report.Objects {
		objects = append(objects, report.Objects[n].Object)
	}
	i.record(Evidence{Objects: objects, Inventory: inventory, History: maps.Clone(history), Settings: i.settings,
		Now: report.At, Failures: slices.Clone(report.Errors)})
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
		"no-metric": errNoMetric, "refused": fs.ErrPermission}
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
