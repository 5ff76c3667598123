package npd

import (
	"cmp"
	"time"

	"k8s.io/node-problem-detector/pkg/types"

	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// native is the agent's own checks.
type native struct {
	checks []detect.Check
	state  func(check string) (finding.CheckState, bool)
}

// statesBehind names the agent's native check that reads the state behind a condition of node-problem-detector's
// shipped files, where the two have different names. Where they have the same, that is enough.
func statesBehind(condition string) string {
	if condition == "XfsShutdown" {
		return "filesystem-readonly"
	}
	return ""
}

// find returns the native check of an ID, if it is enabled.
func (o native) find(id string) (detect.Check, bool) {
	for _, c := range o.checks {
		if c.ID == id {
			return c, true
		}
	}
	return detect.Check{}, false
}

// byCondition returns the native check that sets a condition; sole is false where there are several, or none.
func (o native) byCondition(name string) (check detect.Check, sole bool) {
	n := 0
	for _, c := range o.checks {
		if c.Condition.Type != "" && c.Condition.Type == name {
			check = c
			n++
		}
	}
	return check, n == 1
}

// condition returns a condition of a file. Where a native check sets the same one, both are one condition of the Node
// in either vocabulary, with the worst of both.
func (o native) condition(c types.Condition) finding.Condition {
	own, _ := o.byCondition(c.Type)
	return finding.Condition{
		Type: c.Type, ReadyType: own.Condition.ReadyType,
		HealthyReason:  cmp.Or(c.Reason, own.Condition.HealthyReason),
		HealthyMessage: cmp.Or(c.Message, own.Condition.HealthyMessage),
	}
}

// witness is a native check that can decide that a problem is over. Nil: there is none.
type witness struct {
	id    string
	state func(check string) (finding.CheckState, bool)
}

// stateOf returns the witness of a condition.
func (o native) stateOf(s Settings, condition string) *witness {
	if !s.ClearByState || o.state == nil {
		return nil
	}
	check, ok := o.byCondition(condition)
	if !ok {
		check, ok = o.find(statesBehind(condition))
	}
	if !ok {
		return nil
	}
	return &witness{check.ID, o.state}
}

// settled is how long after a log line its state is certainly visible.
const settled = 3 * time.Second

// refutes reports whether the witness has run long enough after a line, and found nothing.
func (w *witness) refutes(said time.Duration, now finding.Timestamp) bool {
	if w == nil {
		return false
	}
	c, ok := w.state(w.id)
	return ok && c.Status == finding.StatusHealthy && c.Err == "" && len(c.Raised()) == 0 &&
		c.Conclusive.Boot == now.Boot && c.Conclusive.SinceBoot >= said+settled
}
