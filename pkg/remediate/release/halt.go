package release

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// haltFor is how long failures count.
const haltFor = 24 * time.Hour

// Halt returns why releases or repairs stop: too many failed within the last day. Both follow this rule.
func Halt(what string, failures []finding.Timestamp, most int, now finding.Timestamp) string {
	n := 0
	for _, at := range failures {
		if now.Since(at) < haltFor {
			n++
		}
	}
	if n == 0 || n < most {
		return ""
	}
	return fmt.Sprintf("%d %s have failed within a day: no more are tried until they are older", n, what)
}

// failedInARow returns when the last releases failed, once for each pod, since the last pod that was acted on and
// released completely. One pod that cannot be released does not speak for others; see Attempt.Failures.
func failedInARow(records []Record) []finding.Timestamp {
	var row []Record
	acted := map[string]bool{}
	for _, r := range records {
		switch {
		case r.Event == Begin || r.Event == Intent:
			acted[r.Group] = r.Event == Intent
		case r.Event == Finish && r.Failed:
			row = append(slices.DeleteFunc(row, func(other Record) bool { return other.Group == r.Group }), r)
		case r.Event == Finish && r.Result == Released && acted[r.Group]:
			row = nil
		}
	}
	times := make([]finding.Timestamp, 0, len(row))
	for _, r := range row {
		times = append(times, r.At)
	}
	return times
}

// failed reports whether a step of the pod acted and is not known to have helped. A refusal, a wait or a stop by a
// guard is no failure.
func (p *podRelease) failed() bool {
	has := func(results ...Result) bool {
		return slices.ContainsFunc(p.outcome.Steps, func(s StepOutcome) bool {
			return !s.unbegun && slices.Contains(results, s.Result)
		})
	}
	switch p.outcome.Result {
	case Incomplete:
		return has(Failed, CouldNotTell)
	case CouldNotTell:
		return !p.unasked && has(Failed, CouldNotTell, Released)
	}
	return false
}

// halted is the runner's state from its last read of the journal.
type halted struct {
	mu      sync.Mutex
	row     []finding.Timestamp
	trouble string // why the journal cannot be read
}

// readJournal reads the journal and notes the reasons that stop releases.
func (r *Runner) readJournal() (records []Record, skipped int, err error) {
	records, skipped, err = ReadJournal(r.options.StateDir)
	r.halt.mu.Lock()
	defer r.halt.mu.Unlock()
	if err != nil {
		r.halt.trouble = err.Error()
		return nil, 0, err
	}
	r.halt.row, r.halt.trouble = failedInARow(records), ""
	return records, skipped, nil
}

// tooManyFailed returns why no more releases run, by the last read of the journal. A person's request is not stopped: a
// success then ends the row.
func (r *Runner) tooManyFailed() string {
	if r.options.Settings.Attended {
		return ""
	}
	r.halt.mu.Lock()
	defer r.halt.mu.Unlock()
	return Halt("pods in a row", r.halt.row, r.options.Settings.StopAfter, r.options.Host.Clock())
}

// Findings returns the findings that releases are stopped, by failures or by an unreadable journal.
func (r *Runner) Findings() []finding.Finding {
	r.halt.mu.Lock()
	why := r.halt.trouble
	r.halt.mu.Unlock()
	if why != "" {
		why += "; they go on once an administrator makes the journal readable"
	}
	if why = cmp.Or(why, r.tooManyFailed()); why == "" || r.options.Settings.Mode == Off {
		return nil
	}
	return []finding.Finding{{Subject: finding.Subject{Kind: "agent", Name: "releases"}, Severity: finding.Warning,
		Reason: "ReleasesStopped", SuggestedAction: finding.SuggestHuman,
		Message: "releases are stopped on this node: " + why}}
}
