package child

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Kept is one entry of the quarantine. Next to each entry is its record, written before the move. The agent did not
// move an entry whose record is missing or does not match, and never removes it.
type Kept struct {
	Name  string            `json:"name"` // in the quarantine
	UID   string            `json:"uid"`  // of the pod
	Path  string            `json:"path"` // in the pod's directory
	File  FileID            `json:"file"`
	Bytes uint64            `json:"bytes"`
	Moved finding.Timestamp `json:"moved"`

	// as observed: clock jumps and time while the machine was off do not count
	Age        time.Duration     `json:"age"`
	Aged       finding.Timestamp `json:"aged"`           // when Age was last increased
	Reported   bool              `json:"told,omitempty"` // its coming removal was reported,
	ReportedAt time.Duration     `json:"at,omitempty"`   // and its age when that was reported

	Foreign string `json:"foreign,omitempty"` // why the agent must not remove it; empty otherwise
}

// maxKept bounds how many entries the quarantine may have.
const maxKept = 10_000

// openQuarantine opens the quarantine, to which only root may have access. ErrGone if there is none.
func openQuarantine(dir string) (int, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, Gone("open "+dir, err)
	}
	st, err := StatAt(fd, "")
	if err == nil && (st.Uid != 0 || st.Mode&0o077 != 0) {
		err = Refuse("%s belongs to user %d and has mode %o: only root may have access to it", dir, st.Uid, st.Mode)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func quarantine(r Request) error {
	dir, name, err := target(r, unix.S_IFREG, unix.S_IFDIR)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	need, err := bytesOf(dir, name)
	if err != nil {
		return err
	}
	if err := unix.Mkdir(r.Quarantine, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%s: %w", r.Quarantine, err)
	}
	all, err := listQuarantine(r.Quarantine)
	if err != nil {
		return err
	}
	if why := QuarantineFull(all, need, r.Limit); why != "" {
		return Refuse("%s", why)
	}
	to, err := openQuarantine(r.Quarantine)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	kept := r.Kept
	kept.UID, kept.Path, kept.File, kept.Bytes = r.UID, r.Path, r.File, need
	if kept.Name, err = reserve(to, kept); err != nil {
		return err
	}
	err = Gone("move "+name+" to "+r.Quarantine, unix.Renameat2(dir, name, to, kept.Name, unix.RENAME_NOREPLACE))
	if err != nil {
		_ = unix.Unlinkat(to, recordOf(kept.Name), 0) // if it stays, a record without an entry is also removed later
		return err
	}
	return unix.Fsync(to)
}

// QuarantineFull returns why need more bytes do not fit into the quarantine.
func QuarantineFull(all []Kept, need, limit uint64) string {
	held := uint64(0)
	for _, kept := range all {
		held = AddBytes(held, kept.Bytes)
	}
	switch {
	case len(all) >= maxKept:
		return fmt.Sprintf("quarantine is full: it has %d entries", len(all))
	case AddBytes(held, need) > limit:
		return fmt.Sprintf("quarantine is full: it holds %d bytes, this has %d, and %d are allowed "+
			"(remediate.quarantine.maxBytes)",
			held, need, limit)
	}
	return ""
}

// AddBytes adds without an overflow: sparse files may have any size.
func AddBytes(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}

// bytesOf returns the size of a file or of all files in a directory. A mount in it is an error.
func bytesOf(dir int, name string) (uint64, error) {
	top, err := entryAt(dir, name, "")
	if err != nil {
		return 0, err
	}
	entries, err := wholeTree(dir, name, top)
	total := uint64(0)
	for _, entry := range entries {
		total = AddBytes(total, entry.Size)
	}
	return total, err
}

// recordNew is the suffix of a new record while it is being written.
const recordNew = ".json.new"

// recordOf is the name of the record of an entry. Entries begin with the UID of a pod, never with a dot.
func recordOf(name string) string { return "." + name + ".json" }

// reserve finds a free name for a new entry and writes its record to disk.
func reserve(to int, kept Kept) (string, error) {
	prefix := strings.ReplaceAll(path.Join(kept.UID, kept.Path), "/", "_")
	const longest = 200 // of 255 that a file name may have
	prefix = prefix[:min(len(prefix), longest)]
	for attempt := 1; attempt <= 100; attempt++ {
		kept.Name = fmt.Sprintf("%s.%d", prefix, attempt)
		if _, err := StatAt(to, kept.Name); !errors.Is(err, ErrGone) {
			if err != nil {
				return "", err
			}
			continue
		}
		err := writeRecord(to, kept, recordOf(kept.Name))
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		return kept.Name, err
	}
	return "", Refuse("the quarantine already has a hundred entries named %s", prefix)
}

// writeRecord writes a record to a new file.
func writeRecord(to int, kept Kept, name string) error {
	data, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	fd, err := unix.Openat(to, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("record %s: %w", name, err)
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	if _, err = file.Write(data); err == nil {
		err = file.Sync()
	}
	if err != nil {
		_ = unix.Unlinkat(to, name, 0)
		return fmt.Errorf("record %s: %w", name, err)
	}
	return nil
}

// readRecord reads the record of an entry. Only root can have written it.
func readRecord(dir int, name string) (Kept, error) {
	fd, err := openIfThere(dir, recordOf(name), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, resolveInside)
	if err != nil {
		return Kept{}, err
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	st, err := StatAt(fd, "")
	if err != nil {
		return Kept{}, err
	}
	if why := notByRoot(st); why != "" {
		return Kept{}, Refuse("record %s", why)
	}
	data, err := io.ReadAll(io.LimitReader(file, maxNote))
	if err != nil {
		return Kept{}, err
	}
	var kept Kept
	if err := json.Unmarshal(data, &kept); err != nil {
		return Kept{}, fmt.Errorf("record: %w", err)
	}
	return kept, nil
}

// listQuarantine lists the entries of the quarantine, and the records without an entry.
func listQuarantine(name string) ([]Kept, error) {
	fd, err := openQuarantine(name)
	if errors.Is(err, ErrGone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	names, err := dir.Readdirnames(3 * maxKept)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("list %s: %w", name, err)
	}
	if len(names) == 3*maxKept {
		return nil, Refuse("%s holds more than %d files", name, 3*maxKept)
	}
	slices.Sort(names)
	all := make([]Kept, 0, len(names)/2)
	for _, entry := range names {
		if strings.HasPrefix(entry, ".") {
			if strings.HasSuffix(entry, recordNew) {
				continue
			}
			entry = strings.TrimSuffix(strings.TrimPrefix(entry, "."), ".json")
			if _, here := slices.BinarySearch(names, entry); here {
				continue
			}
		}
		kept, err := keptEntry(fd, entry)
		if err != nil {
			return nil, err
		}
		all = append(all, kept)
	}
	return all, nil
}

// keptEntry compares an entry with its record.
func keptEntry(dir int, name string) (Kept, error) {
	kept, recordErr := readRecord(dir, name)
	st, err := StatAt(dir, name)
	switch {
	case errors.Is(err, ErrGone) && recordErr == nil && kept.Name == name:
		// a crash happened before the move, or during the removal
		kept.Bytes = 0
		return kept, nil
	case errors.Is(err, ErrGone):
		return Kept{Name: name, Foreign: "it is not an entry"}, nil
	case err != nil:
		return Kept{}, err
	case recordErr == nil && kept.Name == name && kept.File == fileID(st):
		return kept, nil
	}
	foreign := Kept{Name: name, File: fileID(st), Foreign: "it does not match its record"}
	if recordErr != nil {
		foreign.Foreign = "it has no record: " + recordErr.Error()
	}
	foreign.Bytes, err = bytesOf(dir, name)
	if err != nil {
		foreign.Bytes, foreign.Foreign = math.MaxUint64, foreign.Foreign+"; its size: "+err.Error()
	}
	return foreign, nil
}
