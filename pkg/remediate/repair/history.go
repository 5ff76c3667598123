package repair

import (
	"path/filepath"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
	"github.com/nodeagent/nodeagent/pkg/remediate/wal"
)

// Verified is the result of a repair whose check did not find the fault for the hold time. The other results are those
// of releases.
const (
	Verified release.Result = "verified"
	Done     release.Result = "done" // of a step: the call returned, which proves no cure yet
)

// Record is one line of the journal of repairs.
type Record struct {
	At       finding.Timestamp `json:"at"`
	Event    release.Event     `json:"event"` // intent, end (of the step) or finish (verified, or not)
	Action   Name              `json:"action"`
	Check    string            `json:"check"`
	Subject  finding.Subject   `json:"subject"`
	Reason   string            `json:"reason,omitempty"`
	Finding  string            `json:"finding,omitempty"` // its occurrence
	Identity map[string]string `json:"identity,omitempty"`
	Does     string            `json:"does,omitempty"`
	Result   release.Result    `json:"result,omitempty"`
	Why      string            `json:"why,omitempty"`
}

const journalName = "repair.journal"

func journalFile(stateDir string) string { return filepath.Join(stateDir, journalName) }

// ReadJournal returns all records of repairs, oldest first; see wal.Read.
func ReadJournal(stateDir string) (records []Record, skipped int, err error) {
	return wal.Read(journalFile(stateDir), func(r Record) bool { return r.Event != "" })
}

// attempt is one repair, as read from the journal.
type attempt struct {
	Record                // its intent
	result release.Result // of its finish; of its end if the step did not run; empty: unfinished
	why    string
}

// attempts returns the repairs of a journal, oldest first. They never overlap: a record other than an intent belongs to
// the last intent.
func attempts(records []Record) []attempt {
	var all []attempt
	for _, r := range records {
		switch {
		case r.Event == release.Intent:
			all = append(all, attempt{Record: r})
		case r.Event == release.Finish && len(all) > 0:
			last := &all[len(all)-1]
			last.result, last.why = r.Result, r.Why
		}
	}
	return all
}

// failed reports whether a repair ran and is not known to have helped.
func (a attempt) failed() bool {
	return a.result == release.Failed || a.result == release.CouldNotTell
}

// acted reports whether the step may have run. An attempt without a finish was interrupted at an unknown point.
func (a attempt) acted() bool { return a.result != release.Stopped && a.result != release.Refused }

const day = 24 * time.Hour

// count returns how many attempts within the given time match.
func count(all []attempt, now finding.Timestamp, within time.Duration, match func(attempt) bool) int {
	n := 0
	for _, a := range all {
		if now.Since(a.At) < within && match(a) {
			n++
		}
	}
	return n
}

func anyAttempt(attempt) bool { return true }
