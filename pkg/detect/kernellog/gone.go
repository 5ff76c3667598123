package kernellog

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/proc"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
)

// A fault that the kernel logged about a device, an interface, a cgroup or a process ends when that is gone. It is
// certainly gone if it was seen after its fault, by a unique identity, and is now missing or has been replaced by
// another one of its name:
//
//	a device, an interface   the inode of its directory in /sys/class or /sys/bus, which the kernel numbers anew for each;
//	                         with diskseq of a disk (since Linux 5.15), which a loop device has for each file behind it
//	a cgroup                 the inode of its directory
//	a process                its start time
//
// A subject never seen keeps its finding until the record expires: a name in the log may be a driver's own name
// (ata1.00) or of another network namespace, and a device that vanishes with its error was lost because of it.

// seenAfter is how long after its newest record a subject must be seen: a subject that vanishes at once vanishes
// because of the fault.
const seenAfter = time.Second

// searchGap is the shortest time between two searches for subjects.
const searchGap = 900 * time.Millisecond

// sighting is a subject at the time it was seen.
type sighting struct {
	At     time.Duration `json:"at"` // since boot
	Path   string        `json:"path"`
	ID     string        `json:"id"`
	Base   string        `json:"base"`             // the directory that lists all subjects of its kind
	BaseID string        `json:"baseID"`           // of that directory: a different one lists different subjects
	Parent string        `json:"parent,omitempty"` // of a network card: the device on the bus, which stays when the card is renamed
}

// subjectBases returns the directories in which a subject of a kind may be.
func subjectBases(h *host.Host, kind string) []string {
	switch kind {
	case "device":
		return []string{"/sys/class/block", "/sys/class/nvme", "/sys/bus/pci/devices", "/sys/bus/scsi/devices",
			"/sys/class/scsi_host", "/sys/bus/usb/devices", "/sys/class/mmc_host", "/sys/class/infiniband", "/sys/class/net"}
	case "filesystem", "raid-array":
		return []string{"/sys/class/block"}
	case "network-device":
		return []string{"/sys/class/net"}
	case "cgroup":
		bases := []string{h.Paths.CgroupMount}
		for _, hierarchy := range []string{"unified", "memory", "pids"} { // of cgroup v1
			bases = append(bases, path.Join(h.Paths.CgroupMount, hierarchy))
		}
		return bases
	case "process":
		return []string{"/proc"}
	}
	return nil
}

// sight searches for the subject of a record.
func sight(h *host.Host, key tallyKey, facts map[string]string) (sighting, bool) {
	kind, name := key.subject.Kind, key.subject.Name
	switch kind {
	case "process":
		if key.rule.Escalate.Count > 0 || key.rule.Report == "oom" {
			return sighting{}, false // its end is the fault
		}
		pid, err := strconv.Atoi(facts["pid"])
		if err != nil || pid <= 0 {
			return sighting{}, false
		}
		name = strconv.Itoa(pid)
	case "cgroup":
		if !strings.HasPrefix(name, "/") || name == "/" || path.Clean(name) != name {
			return sighting{}, false
		}
	default:
		if name == "" || name == "." || name == ".." || strings.Contains(name, "/") {
			return sighting{}, false
		}
	}
	for _, base := range subjectBases(h, kind) {
		s := sighting{At: h.Clock().SinceBoot, Base: base, Path: path.Join(base, name)}
		var err, baseErr error
		s.ID, err = identity(h, kind, s.Path)
		s.BaseID, baseErr = h.Files.Inode(base)
		if err != nil || baseErr != nil {
			continue
		}
		if base == "/sys/class/net" {
			s.Parent, _ = h.Files.Resolve(s.Path + "/device") // virtual devices have none
		}
		return s, true
	}
	return sighting{}, false
}

// identity distinguishes a subject from a later one with the same name.
func identity(h *host.Host, kind, name string) (string, error) {
	if kind == "process" {
		data, err := h.Files.Read(name + "/stat")
		if err != nil {
			return "", err
		}
		stat, err := proc.ParseStat(data)
		return strconv.FormatUint(stat.StartTime, 10), err
	}
	inode, err := h.Files.Inode(name)
	if err != nil || !strings.HasPrefix(name, "/sys/class/block/") {
		return inode, err
	}
	for _, file := range []string{"/diskseq", "/../diskseq"} { // of a disk; of the disk that a partition is on
		sequence, err := h.Files.Text(name + file)
		if err == nil {
			return inode + " " + sequence, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return inode, nil
}

// gone reports whether a subject is certainly gone: an error is no evidence. replaced means that another subject has
// its name.
func (s sighting) gone(h *host.Host, kind string) (gone, replaced bool) {
	base, err := h.Files.Inode(s.Base)
	if err != nil || base != s.BaseID {
		return false, false
	}
	id, err := identity(h, kind, s.Path)
	switch {
	case err == nil:
		return id != s.ID, id != s.ID
	case !errors.Is(err, fs.ErrNotExist) && !proc.Gone(err):
		return false, false
	case s.Base != "/sys/class/net":
		return true, false
	}
	if s.Parent != "" {
		if _, err := h.Files.Inode(s.Parent); !errors.Is(err, fs.ErrNotExist) {
			return false, false // renamed, or in the network namespace of a pod
		}
	}
	names, err := h.Files.List(s.Base)
	return err == nil && !slices.ContainsFunc(names, func(name string) bool { // renamed
		id, err := h.Files.Inode(path.Join(s.Base, name))
		return err == nil && id == s.ID || err != nil && !errors.Is(err, fs.ErrNotExist)
	}), false
}

// ForgetGone drops the records of subjects that no longer exist, and notes those that do. For a rule whose faults last
// until the next boot only a replacement counts: the subject may be gone because of the fault.
func (l *Log) ForgetGone(h *host.Host) {
	now := h.Clock().SinceBoot
	type candidate struct {
		held
		sighted, gone bool
	}
	var candidates []candidate
	l.mu.Lock()
	due := l.searchedAt == 0 || now-l.searchedAt >= searchGap
	if due {
		l.searchedAt = now
		for _, r := range l.held {
			if now-r.last >= seenAfter && subjectBases(h, r.key.subject.Kind) != nil {
				candidates = append(candidates, candidate{held: *r})
			}
		}
	}
	l.mu.Unlock()
	for i := range candidates { // without the lock: records arrive meanwhile
		r := &candidates[i]
		if r.seen.At-r.last < seenAfter {
			r.seen, r.sighted = sight(h, r.key, r.facts)
			continue
		}
		gone, replaced := r.seen.gone(h, r.key.subject.Kind)
		r.gone = gone && (replaced || r.key.rule.Expiry != rules.UntilBoot)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range candidates {
		current := l.held[r.key]
		switch {
		case current == nil || current.last != r.last: // a later record has replaced it
		case r.gone:
			l.forget(r.key)
			l.tally.forget(r.key)
		case r.sighted:
			current.seen, l.moved = r.seen, true
		}
	}
}
