package npd

import (
	"cmp"
	"time"

	"k8s.io/node-problem-detector/pkg/types"

	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// native has the agent's own checks.
type native struct {
	checks []detect.Check
	state  func(check string) (finding.CheckState, bool)
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

// byCondition returns the native check that sets a condition; sole is false if there are several, or none.
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

// condition returns a condition of a file. If a native check sets the same one, both are one condition of the Node in
// either vocabulary, with the worse status.
func (o native) condition(c types.Condition) finding.Condition {
	own, _ := o.byCondition(c.Type)
	return finding.Condition{
		Type: c.Type, ReadyType: own.Condition.ReadyType,
		HealthyReason:  cmp.Or(c.Reason, own.Condition.HealthyReason),
		HealthyMessage: cmp.Or(c.Message, own.Condition.HealthyMessage),
	}
}

// settled is how long after a log line its state is certainly visible.
const settled = 3 * time.Second

// refuted reports whether a native check ran long enough after a line was written, and found no fault.
type refuted func(written time.Duration, now finding.Timestamp) bool

// refuted uses the native check that reads the state behind a condition: the one that sets it, or, for a condition of
// node-problem-detector's shipped files, the one with another name.
func (o native) refuted(s Settings, condition string) refuted {
	check, ok := o.byCondition(condition)
	if !ok && condition == "XfsShutdown" {
		check, ok = o.find("filesystem-readonly")
	}
	if !ok || !s.ClearByState || o.state == nil {
		return func(time.Duration, finding.Timestamp) bool { return false }
	}
	return func(written time.Duration, now finding.Timestamp) bool {
		c, ok := o.state(check.ID)
		return ok && c.Status == finding.StatusHealthy && c.Err == "" && len(c.Raised()) == 0 &&
			c.Conclusive.Boot == now.Boot && c.Conclusive.SinceBoot >= written+settled
	}
}
