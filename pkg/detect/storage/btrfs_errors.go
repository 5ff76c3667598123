package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// btrfs-errors reads, of each mounted btrfs filesystem and each of its devices (N is the number that btrfs gives it),
//
//	/sys/fs/btrfs/UUID/devinfo/N/missing        0                  since Linux 5.6
//	/sys/fs/btrfs/UUID/devinfo/N/error_stats    write_errs 0       since Linux 5.14; "invalid" until read from the disk
//	                                            read_errs 0
//	                                            flush_errs 0
//	                                            corruption_errs 3
//	                                            generation_errs 0
//	/sys/fs/btrfs/UUID/devices/sda1             a link to each block device
//
// Documentation/ABI does not describe them: fs/btrfs/sysfs.c,
// https://btrfs.readthedocs.io/en/latest/btrfs-device.html#device-stats. The counters are kept on the disk and only
// reset by a person (btrfs device stats -z). Older kernels have the errors only in their log: rules btrfs-error and
// btrfs-readonly.

const (
	reasonBtrfsMissing  = "BtrfsDeviceMissing"
	reasonBtrfsErrors   = "BtrfsDeviceErrors"
	reasonBtrfsRecorded = "BtrfsErrorsRecorded"

	btrfsRoot  = "/sys/fs/btrfs"
	btrfsFresh = 24 * time.Hour // how long a rise is reported
	maxBtrfs   = 256            // filesystems, and devices of one
)

// BtrfsErrors finds failing or missing devices of btrfs filesystems.
func BtrfsErrors() detect.Check {
	state := &btrfsState{devices: map[string]btrfsHistory{}}
	return detect.Check{
		ID: "btrfs-errors", Domain: "storage",
		Summary: "a device of a btrfs filesystem fails, returns wrong data, or is missing",
		Advice: "`btrfs device stats MOUNTPOINT` and `btrfs filesystem show` name the device. `btrfs scrub start " +
			"MOUNTPOINT` finds damaged data and repairs it where there is a second copy. Replace the device (`btrfs " +
			"replace`), then reset the counters with `btrfs device stats -z MOUNTPOINT`.",
		Doc: detect.Doc{
			Reads: []string{btrfsRoot + "/UUID/devinfo/N/{missing,error_stats}"},
			Why: "btrfs detects wrong data that other filesystems pass on. With one copy these data are lost; with " +
				"two the next failure takes the rest.",
			Faults: []detect.Fault{
				{Reason: reasonBtrfsMissing, Severity: finding.Warning,
					When: "a device is missing: the filesystem was mounted degraded"},
				{Reason: reasonBtrfsErrors, Severity: finding.Warning,
					When: "a counter of errors has risen within a day"},
				{Reason: reasonBtrfsRecorded, Severity: finding.Info, When: "counters are not 0, and none has risen " +
					"within a day or since the agent's start"},
			},
			FalseAlarms: "Old errors that were not reset stay as info. Checksum errors that the other copy " +
				"repaired count too: the disk returned wrong data.",
		},
		Every: time.Minute, Deadline: 5 * time.Second,
		Wakes: []detect.Wake{checkkit.LogWake("BTRFS"), checkkit.KernelWake()},
		Run:   state.run,
	}
}

// btrfsState is kept between runs.
type btrfsState struct {
	devices map[string]btrfsHistory
}

// btrfsHistory is the state of a device in earlier runs.
type btrfsHistory struct {
	errors uint64        // sum of all counters
	risen  time.Duration // uptime of the last run in which it rose; 0: none
}

func (m *btrfsState) run(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	names, err := h.Files.List(btrfsRoot)
	if err != nil {
		return nil, checkkit.UnlessAbsent(err, "the kernel has no btrfs")
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.Contains(name, "-") }) // features, debug
	switch {
	case len(names) == 0:
		return nil, finding.NotApplicable("no btrfs filesystem is mounted")
	case len(names) > maxBtrfs:
		return nil, fmt.Errorf("list %s: more than %d filesystems", btrfsRoot, maxBtrfs)
	}
	slices.Sort(names)
	var devices []btrfsDevice
	for _, uuid := range names {
		devices = append(devices, readBtrfs(h.Files, uuid)...)
	}
	if len(devices) == 0 {
		return nil, finding.NotApplicable("the kernel shows nothing of the devices of btrfs (before Linux 5.6)")
	}
	return m.evaluate(devices, h.Clock().SinceBoot)
}

// evaluate compares devices with their history, and records them.
func (m *btrfsState) evaluate(devices []btrfsDevice, up time.Duration) ([]finding.Finding, error) {
	now := make(map[string]btrfsHistory)
	var results checkkit.Results
	for _, d := range devices {
		subject := finding.Subject{Kind: "btrfs-device", Name: d.uuid + "/" + d.id}
		history, known := m.devices[subject.Name]
		if d.err == nil && d.counters != nil {
			history, known = history.add(d.sum(), up, known), true
		}
		if known {
			now[subject.Name] = history
		}
		if !results.Doubt(subject, d.err) {
			results.Add(d.evaluate(subject, history, up))
		}
	}
	m.devices = now
	return results.Done()
}

// add returns the history after one more run. A lower count than before means a reset.
func (p btrfsHistory) add(errors uint64, up time.Duration, known bool) btrfsHistory {
	switch {
	case known && errors > p.errors:
		p.risen = up
	case errors < p.errors:
		p.risen = 0
	}
	p.errors = errors
	return p
}

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
