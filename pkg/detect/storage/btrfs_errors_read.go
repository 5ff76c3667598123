package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// btrfsDevice is one device of a filesystem, from sysfs.
type btrfsDevice struct {
	uuid, id string
	devices  []string // names of all block devices of the filesystem
	missing  bool
	counters map[string]uint64 // empty if the kernel shows none
	err      error
}

// readBtrfs reads all devices of one filesystem: none if the kernel does not show them, or if it was unmounted
// meanwhile.
func readBtrfs(files host.Files, uuid string) []btrfsDevice {
	dir := btrfsRoot + "/" + uuid
	ids, err := checkkit.ListSorted(files, dir+"/devinfo")
	if err == nil && len(ids) > maxBtrfs {
		err = fmt.Errorf("list %s/devinfo: more than %d devices", dir, maxBtrfs)
	}
	if err != nil {
		return []btrfsDevice{{uuid: uuid, id: "all", err: err}}
	}
	names, _ := checkkit.ListSorted(files, dir+"/devices") // only for display
	var devices []btrfsDevice
	for _, id := range ids {
		d := btrfsDevice{uuid: uuid, id: id, devices: names}
		missing, err := checkkit.ReadNumber(files, dir+"/devinfo/"+id+"/missing")
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if d.missing, d.err = missing != 0, err; err == nil {
			d.counters, d.err = readBtrfsStats(files, dir+"/devinfo/"+id+"/error_stats")
		}
		devices = append(devices, d)
	}
	return devices
}

func readBtrfsStats(files host.Files, name string) (map[string]uint64, error) {
	counters, err := checkkit.Parse(files, name, parseBtrfsStats)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // before Linux 5.14
	}
	return counters, err
}

// parseBtrfsStats parses lines such as "write_errs 0". The kernel prints the counters as signed numbers of 32 bits.
func parseBtrfsStats(text string) (map[string]uint64, error) {
	if strings.TrimSpace(text) == "invalid" {
		return nil, nil // not yet read from the disk
	}
	counters := make(map[string]uint64)
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseInt(value, 10, 32)
		if err != nil || !strings.HasSuffix(name, "_errs") || len(name) > 32 {
			return nil, checkkit.InLine(line, errors.New("want NAME_errs NUMBER"))
		}
		counters[name] = uint64(uint32(n))
	}
	if len(counters) == 0 {
		return nil, errors.New("no counters")
	}
	return counters, nil
}

func (d btrfsDevice) sum() uint64 {
	sum := uint64(0)
	for _, n := range d.counters {
		sum += n
	}
	return sum
}

// evaluate reports the faults of a device.
func (d btrfsDevice) evaluate(subject finding.Subject, history btrfsHistory,
	up time.Duration) (finding.Finding, bool) {
	f := finding.Finding{
		Subject: subject, Severity: finding.Warning,
		Facts: map[string]string{"uuid": d.uuid, "devices": finding.JoinFirst(d.devices, 16)},
	}
	what := fmt.Sprintf("device %s of btrfs %s", d.id, d.uuid)
	if len(d.devices) > 0 {
		what += fmt.Sprintf(" (on %s)", finding.JoinFirst(d.devices, 4))
	}
	var counts []string
	for _, name := range []string{"write_errs", "read_errs", "flush_errs", "corruption_errs", "generation_errs"} {
		if n := d.counters[name]; n > 0 {
			f.Facts[name] = fmt.Sprint(n)
			counts = append(counts, fmt.Sprintf("%d %s", n, strings.ReplaceAll(name, "_errs", " errors")))
		}
	}
	switch {
	case d.missing:
		f.Reason, f.Message = reasonBtrfsMissing, what+" is missing: the filesystem is degraded"
	case history.risen > 0 && up-history.risen < btrfsFresh:
		f.Reason, f.Message = reasonBtrfsErrors, what+" fails: "+strings.Join(counts, ", ")
	case d.sum() > 0:
		f.Severity, f.Reason, f.Message = finding.Info, reasonBtrfsRecorded, what+" has failed before: "+
			strings.Join(counts, ", ")
	default:
		return finding.Finding{}, false
	}
	return f, true
}
