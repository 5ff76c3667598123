package remediate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// Record is one line of the journal.
type Record struct {
	At       finding.Timestamp `json:"at"`
	Event    Event             `json:"event"`
	Group    string            `json:"group"`
	Pod      inspect.Pod       `json:"pod,omitzero"`
	Kind     inspect.Kind      `json:"kind,omitempty"`
	ID       string            `json:"id,omitempty"`
	Identity inspect.Identity  `json:"identity,omitempty"`
	Does     string            `json:"does,omitempty"`
	Result   Result            `json:"result,omitempty"`
	Why      string            `json:"why,omitempty"`
}

// Event is what a record is about.
type Event string

// The events.
const (
	Begin  Event = "begin"  // the release of one pod begins
	Intent Event = "intent" // a step is about to be done
	End    Event = "end"    // it was done and verified, or it failed
	Finish Event = "finish" // the release of the pod has ended
	Notice Event = "notice" // an entry of the quarantine will be removed; nothing is done yet
)

const (
	journalName = "release.journal"
	maxJournal  = 1 << 20 // then it becomes release.journal.1: both hold more than a year of normal use
	maxRecord   = 64 << 10
)

// journal is an append-only file of JSON lines. It is open only while the release lock is held, since the daemon and
// the command line write the same file.
type journal struct {
	file *os.File
	dir  string
	size int64

	onWrite func(Record) error // tests only; may be nil
}

// ReadJournal returns all records, oldest first. A truncated last line, as a crash leaves it, and malformed lines are
// counted and skipped: the state of the node is never derived from the journal.
func ReadJournal(dir string) (records []Record, skipped int, err error) {
	for _, name := range []string{journalName + ".1", journalName} {
		data, err := host.Files{}.Read(filepath.Join(dir, name)) // never blocks
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, 0, fmt.Errorf("journal: %w", err)
		}
		more, torn := parseJournal(data)
		records, skipped = append(records, more...), skipped+torn
	}
	return records, skipped, nil
}

func parseJournal(data []byte) (records []Record, skipped int) {
	for line := range bytes.Lines(data) {
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var r Record
		if err := json.Unmarshal(line, &r); err != nil || r.Event == "" {
			skipped++
			continue
		}
		records = append(records, r)
	}
	return records, skipped
}

// openJournal opens the journal for appending. Without it nothing may be released.
func openJournal(dir string) (*journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	j := &journal{dir: dir}
	if err := j.open(); err != nil {
		return nil, err
	}
	return j, nil
}

func (j *journal) open() error {
	file, err := os.OpenFile(filepath.Join(j.dir, journalName), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	size, err := file.Seek(0, io.SeekEnd)
	if err == nil {
		err = syncDir(j.dir)
	}
	if err == nil {
		err = endLine(file, size)
	}
	if err != nil {
		file.Close()
		return fmt.Errorf("journal: %w", err)
	}
	j.file, j.size = file, size
	return nil
}

// endLine ends a line that a crash has truncated, so that the next record gets its own line.
func endLine(file *os.File, size int64) error {
	if size == 0 {
		return nil
	}
	last := make([]byte, 1)
	if _, err := file.ReadAt(last, size-1); err != nil {
		return err
	}
	if last[0] == '\n' {
		return nil
	}
	_, err := file.Write([]byte("\n"))
	return err
}

// write appends one record and syncs it to disk.
func (j *journal) write(r Record) error {
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if len(line) > maxRecord {
		return fmt.Errorf("journal: record of %d bytes", len(line))
	}
	if j.onWrite != nil {
		if err := j.onWrite(r); err != nil {
			return fmt.Errorf("journal: %w", err)
		}
	}
	// One write, so that only a crash or a full disk can truncate it.
	n, err := j.file.Write(append(line, '\n'))
	j.size += int64(n)
	if err == nil {
		err = j.file.Sync()
	}
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// rotate renames a journal that has grown too large. It replaces the previous one.
func (j *journal) rotate() error {
	if j.size < maxJournal {
		return nil
	}
	name := filepath.Join(j.dir, journalName)
	if err := os.Rename(name, name+".1"); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if err := j.file.Close(); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return j.open()
}

func (j *journal) close() error { return j.file.Close() }

func syncDir(name string) error {
	dir, err := os.Open(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// attempts returns the last release of each pod according to the journal.
func attempts(records []Record) map[string]Attempt {
	all := map[string]Attempt{}
	for _, r := range records {
		switch r.Event {
		case Begin:
			all[r.Group] = Attempt{At: r.At, Idle: true}
		case Intent:
			if attempt, ok := all[r.Group]; ok {
				attempt.Idle = false
				all[r.Group] = attempt
			}
		case Finish:
			if attempt, ok := all[r.Group]; ok && r.Result != Interrupted {
				attempt.Finished, attempt.Complete = true, r.Result == Released
				all[r.Group] = attempt
			}
		}
	}
	return all
}

// unfinished returns the intents without an end, and the releases without a finish: those that a crash interrupted.
func unfinished(records []Record) []Record {
	type key struct {
		group string
		kind  inspect.Kind
		id    string
	}
	open := map[key]int{}
	for at, r := range records {
		k := key{r.Group, r.Kind, r.ID}
		switch r.Event {
		case Begin, Intent:
			open[k] = at
		case End, Finish:
			delete(open, k)
		}
	}
	var cut []Record
	for at, r := range records {
		if last, ok := open[key{r.Group, r.Kind, r.ID}]; ok && last == at {
			cut = append(cut, r)
		}
	}
	return cut
}
