package report

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	// MaxReason and MaxMessage bound the texts of a condition, in bytes (the limits of a metav1.Condition; the one of
	// the message is rounded down, since each message is sent to all watchers of nodes).
	MaxReason  = 1024
	MaxMessage = 1024
	// maxSuggestion bounds the suggested action in a message, in bytes.
	maxSuggestion = 256
	// ReasonUnknown is the reason of an unknown condition; also that of the tracker's own finding.
	ReasonUnknown = "CheckCouldNotTell"

	healthyReason  = "NoProblemFound"
	healthyMessage = "no problem found"
	faultyReason   = "ProblemFound"
	notObserved    = "no conclusive observation yet"
)

// Verdict is the believed status of one condition, over all checks that share it.
type Verdict struct {
	Status  finding.Status
	Since   finding.Timestamp // when the status changed, as far as the checks know
	Sole    bool              // only one check has this condition, so Since is exact
	Blank   bool              // unknown because a check has had no conclusive observation yet
	Reason  string
	Message string
}

// Evaluate returns the verdict of the checks that share a condition: faulty if any is, else unknown if any is, else
// healthy if any applies. A nil state belongs to a check that has not run yet.
func Evaluate(n finding.Condition, checks ...*finding.CheckState) Verdict {
	v := Verdict{Status: finding.StatusNotApplicable, Sole: len(checks) == 1}
	checks = slices.Clone(checks)
	for i, c := range checks {
		if c == nil {
			checks[i] = &finding.CheckState{Status: finding.StatusUnknown}
		}
		if precedence(checks[i].Status) < precedence(v.Status) {
			v.Status = checks[i].Status
		}
	}
	v.Since = since(v.Status, checks)
	switch v.Status {
	case finding.StatusFaulty:
		v.Reason, v.Message = faulty(checks)
	case finding.StatusUnknown:
		v.unknown(checks)
	case finding.StatusHealthy:
		v.Reason = Reason(cmp.Or(n.HealthyReason, healthyReason), MaxReason)
		v.Message = Text(cmp.Or(n.HealthyMessage, healthyMessage), MaxMessage)
	}
	return v
}

// precedence orders statuses: if several checks share a condition, the smallest wins.
func precedence(s finding.Status) int {
	switch s {
	case finding.StatusFaulty:
		return 0
	case finding.StatusHealthy:
		return 2
	case finding.StatusNotApplicable:
		return 3
	}
	return 1 // unknown
}

// since is when the common status of several checks began: a fault with the first faulty check, every other status with
// the last check that changed.
func since(s finding.Status, checks []*finding.CheckState) finding.Timestamp {
	var best finding.Timestamp
	for _, c := range checks {
		if s == finding.StatusFaulty && c.Status != s {
			continue
		}
		later := c.Since.Wall.After(best.Wall)
		if best.IsZero() || later == (s != finding.StatusFaulty) {
			best = c.Since
		}
	}
	return best
}

// faulty returns the reason and message of the oldest fatal finding, and the number of the others: another fault
// changes only this number.
func faulty(checks []*finding.CheckState) (reason, message string) {
	var fatal []finding.Believed
	for _, c := range checks {
		for _, b := range c.Raised() {
			if b.Severity == finding.Fatal {
				fatal = append(fatal, b)
			}
		}
	}
	if len(fatal) == 0 {
		return faultyReason, "a fatal problem was found"
	}
	first := slices.MinFunc(fatal, func(a, b finding.Believed) int {
		return cmp.Or(a.Raised.Wall.Compare(b.Raised.Wall), finding.Compare(a.Finding, b.Finding))
	})
	suffix := ""
	if suggestion := first.Suggestion(); suggestion != "" {
		suffix = " (suggested action: " + Text(suggestion, maxSuggestion) + ")"
	}
	if len(fatal) > 1 {
		suffix += fmt.Sprintf(" (and %d more)", len(fatal)-1)
	}
	return Reason(first.Reason, MaxReason), TextWith(cmp.Or(first.Message, first.Reason), suffix, MaxMessage)
}

// unknown sets the reason and message of an unknown condition.
func (v *Verdict) unknown(checks []*finding.CheckState) {
	v.Reason, v.Message = ReasonUnknown, ""
	for _, c := range checks {
		if c.Status != finding.StatusUnknown {
			continue
		}
		v.Blank = v.Blank || c.Conclusive.IsZero()
		v.Message = cmp.Or(v.Message, c.Err)
	}
	v.Message = Text(cmp.Or(v.Message, notObserved), MaxMessage)
}
