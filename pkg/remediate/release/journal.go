package release

import (
	"fmt"
	"path/filepath"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/wal"
)

// Record is one line of the journal.
type Record struct {
	At       finding.Timestamp `json:"at"`
	Event    Event             `json:"event"`
	Group    string            `json:"group"`
	Pod      object.Pod        `json:"pod,omitzero"`
	Kind     object.Kind       `json:"kind,omitempty"`
	ID       string            `json:"id,omitempty"`
	Identity object.Identity   `json:"identity,omitzero"`
	Does     string            `json:"does,omitempty"`
	Result   Result            `json:"result,omitempty"`
	Why      string            `json:"why,omitempty"`
	Failed   bool              `json:"failed,omitempty"` // of a finish: an act is not known to have helped
}

// Event is the type of a record.
type Event string

// The events.
const (
	Begin  Event = "begin"  // the release of one pod begins
	Intent Event = "intent" // a step is about to run
	End    Event = "end"    // it ran and was verified, or it failed
	Finish Event = "finish" // the release of the pod has ended
	Notice Event = "notice" // an entry of the quarantine will be removed, but not yet
)

const (
	journalName = "release.journal"
	maxJournal  = wal.MaxSize // then it becomes release.journal.1
)

// journal is the log of releases. It is open only while the release lock is held, since the daemon and the command line
// write the same file.
type journal struct {
	*wal.File
	onRecord func(Record)       // called with records on disk; may be nil
	onWrite  func(Record) error // tests only; may be nil
}

// UnderWay reports whether a release is running that writes to the journal in this directory.
func UnderWay(stateDir string) (bool, error) { return mutate.Locked(stateDir) }

// ReadJournal returns all records, oldest first; see wal.Read.
func ReadJournal(dir string) (records []Record, skipped int, err error) {
	return wal.Read(filepath.Join(dir, journalName), Record.valid)
}

func (r Record) valid() bool { return r.Event != "" }

// openJournal opens the journal for appending. Without it no release may run.
func openJournal(dir string) (*journal, error) {
	file, err := wal.Open(filepath.Join(dir, journalName))
	if err != nil {
		return nil, err
	}
	return &journal{File: file}, nil
}

// write appends one record and syncs it to disk.
func (j *journal) write(r Record) error {
	if j.onWrite != nil {
		if err := j.onWrite(r); err != nil {
			return fmt.Errorf("journal: %w", err)
		}
	}
	err := j.Write(r)
	if err == nil && j.onRecord != nil {
		j.onRecord(r)
	}
	return err
}

// attempts returns the last release of each pod according to the journal.
func attempts(records []Record) map[string]Attempt {
	all := map[string]Attempt{}
	for _, r := range records {
		attempt, begun := all[r.Group]
		switch {
		case r.Event == Begin:
			attempt = Attempt{At: r.At, Idle: true, Failures: attempt.Failures}
		case !begun:
			continue
		case r.Event == Intent:
			attempt.Idle = false
		case r.Event == Finish && r.Result != Interrupted:
			attempt.Finished, attempt.Complete = true, r.Result == Released
			if r.Failed {
				attempt.Failures = append(attempt.Failures, r.At)
			}
		}
		all[r.Group] = attempt
	}
	return all
}

// unfinished returns the intents without an end, and the releases without a finish: a crash interrupted them.
func unfinished(records []Record) []Record {
	key := func(r Record) [3]string { return [3]string{r.Group, string(r.Kind), r.ID} }
	open := map[[3]string]int{}
	for at, r := range records {
		switch r.Event {
		case Begin, Intent:
			open[key(r)] = at
		case End, Finish:
			delete(open, key(r))
		}
	}
	var cut []Record
	for at, r := range records {
		if last, ok := open[key(r)]; ok && last == at {
			cut = append(cut, r)
		}
	}
	return cut
}
