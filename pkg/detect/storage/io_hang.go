package storage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// io-hang reads
//
//	/proc/diskstats           259 0 nvme0n1 157698 1 9283446 30164 1174533 417126 41357770 1316471 3 703612 1346636 …
//	                          reads completed (4th field), writes (8th), discards (15th), flushes (19th), in flight (12)
//
// and, only if I/O is in flight for long, /proc/pressure/io and /sys/block/*/slaves.
//
// https://docs.kernel.org/admin-guide/iostats.html, https://docs.kernel.org/block/stat.html
//
// The kernel counts an I/O as completed when it ends, successfully or with an error, so this check does not find a disk
// that only fails its I/Os. An I/O that timed out stays in flight while the driver aborts the command or resets the
// device, and until it has ended or is sent again: during that time no I/O is completed. A flush before Linux 5.5 and a
// passthrough command (SMART, sanitize) are not counted at all. An unchanged count of completed I/Os with some in
// flight at both ends proves that those at the start are those at the end, whatever happened to the agent in between.
// "ms with any in flight" (13th field) is not used: from 5.0 to 6.2 it stands still while a disk hangs. Requests that
// wait before the driver gets them (a blocked SCSI device, a cgroup's limit) are not in flight yet.

// IOHangSettings are the thresholds of io-hang.
type IOHangSettings struct {
	After      time.Duration `yaml:"after"`      // no I/O completed for this long while some are in flight
	FatalAfter time.Duration `yaml:"fatalAfter"` // the same for a disk that the node itself needs
}

// DefaultIOHangSettings returns the default settings.
func DefaultIOHangSettings() IOHangSettings {
	return IOHangSettings{After: 30 * time.Second, FatalAfter: time.Minute}
}

const (
	ioHangEvery = 10 * time.Second
	// waitingShare is the share of time with some task waiting for I/O that proves that a hung disk is in use.
	waitingShare = 0.1

	reasonDiskHung = "DiskHung"
)

// IOHang finds disks that stopped answering.
func IOHang(s IOHangSettings) detect.Check {
	state := &ioHangState{settings: s, stalls: make(map[string]ioStall)}
	return detect.Check{
		ID: "io-hang", Domain: "storage",
		Summary: "a disk has I/O in flight and completes none of it",
		Advice: "Everything that accesses the disk waits in state D and cannot be killed. See `dmesg -T | tail -50` " +
			"for resets and timeouts of the disk and `cat /sys/block/DISK/inflight`; for a network disk, check its " +
			"server or the cloud's status. Cordon the node; if the disk does not come back, fail over its pods and " +
			"power-cycle the machine: an orderly reboot would wait for the disk too.",
		Doc: detect.Doc{
			Reads: []string{diskStatsFile,
				"/proc/pressure/io, /sys/block/*/{slaves,mq} and the mount table while a disk hangs"},
			Why: "Pods on the disk freeze without dying; where it holds the node's own filesystems, kubelet and " +
				"the runtime freeze too, often while the node still looks Ready. Disks of clouds may never time out " +
				"(nvme_core.io_timeout 4294967295), and then the kernel logs no error.",
			Faults: []detect.Fault{{
				Reason: reasonDiskHung, Severity: finding.Fatal,
				When: "no I/O completed for 30 s while some are in flight: warning (drivers themselves give up a " +
					"command after 30 s, and spin-ups and flushes take up to 20 s); fatal after 60 s where the disk " +
					"holds the filesystem of /, kubelet or the runtime, I/O to that filesystem hangs, and tasks wait " +
					"for it (resets and failovers take up to a minute)",
			}},
			FalseAlarms: "Stacked devices (dm, md) whose count of I/Os in flight the kernel has lost: not believed " +
				"unless a disk below hangs or tasks wait for I/O. Clock jumps and machines that were stopped: two " +
				"runs never count for more than 20 s.",
		},
		Condition: detect.StorageProblem(),
		Every:     ioHangEvery, Deadline: 8 * time.Second,
		Policy: finding.Policy{Clear: finding.Hold{Runs: 2, For: ioHangEvery}},
		Run:    state.run,
	}
}

// ioHangState is kept between runs.
type ioHangState struct {
	settings IOHangSettings
	lastRun  time.Duration      // uptime
	stalls   map[string]ioStall // by name; only of devices with I/O in flight
	ioWaited time.Duration      // total of /proc/pressure/io in the last run
	ioKnown  bool
	// share of the time between the last two runs in which some task waited for I/O; below 0: unknown
	waitShare float64
}

// ioStall is a device with I/O in flight.
type ioStall struct {
	device    string
	completed uint64
	held      time.Duration // no I/O completed for this long
}

func (m *ioHangState) run(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	stats, err := readDiskStats(h.Files)
	if err != nil {
		return nil, err
	}
	if len(stats) == 0 {
		return nil, finding.NotApplicable("there is no disk")
	}
	now := h.Clock().SinceBoot
	m.advance(stats, min(max(now-m.lastRun, 0), 2*ioHangEvery))
	m.wait(h.Files, now-m.lastRun)
	m.lastRun = now
	var hung []string
	for _, d := range stats {
		if m.stalls[d.name].held >= m.settings.After {
			hung = append(hung, d.name)
		}
	}
	if len(hung) == 0 {
		return nil, nil
	}
	return m.evaluate(ctx, h, hung)
}

// advance records which devices have had I/O in flight since the last run and completed none.
func (m *ioHangState) advance(stats []diskStat, passed time.Duration) {
	now := make(map[string]ioStall)
	for _, d := range stats {
		if d.inFlight == 0 {
			continue
		}
		stall := ioStall{device: d.device(), completed: d.completed}
		if last, ok := m.stalls[d.name]; ok && last.device == stall.device && last.completed == stall.completed {
			stall.held = last.held + passed
		}
		now[d.name] = stall
	}
	m.stalls = now
}

// wait reads how long tasks waited for I/O since the last run; only if I/O was in flight all that time.
func (m *ioHangState) wait(files host.Files, passed time.Duration) {
	m.waitShare = -1
	known, before := m.ioKnown, m.ioWaited
	m.ioKnown = false
	if !slices.ContainsFunc(slices.Collect(maps.Values(m.stalls)), func(s ioStall) bool { return s.held > 0 }) {
		return
	}
	data, err := files.Read("/proc/pressure/io") // absent if the kernel was built or booted without it
	if err != nil {
		return
	}
	total, ok := pressureTotal(string(data))
	if !ok {
		return
	}
	m.ioWaited, m.ioKnown = total, true
	if known && passed > 0 && total >= before {
		m.waitShare = float64(total-before) / float64(passed)
	}
}

// pressureTotal parses the total of the line "some avg10=0.00 avg60=0.00 avg300=0.00 total=155743588", in µs.
func pressureTotal(text string) (time.Duration, bool) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) == 0 || fields[0] != "some" {
		return 0, false
	}
	total, err := checkkit.FieldAfter(fields, "total=")
	if err != nil || total > 1e15 { // 30 years
		return 0, false
	}
	return time.Duration(total) * time.Microsecond, true
}

// evaluate finds which of the hung devices are the cause, and the severity for the node. A device that is stacked on a
// hung device hangs for that reason: the finding of the lowest one names it.
func (m *ioHangState) evaluate(ctx context.Context, h *host.Host, hung []string) ([]finding.Finding, error) {
	mounts, mountsErr := mount.Visible(mount.Recent(h))
	var results checkkit.Results
	causes := make(map[string][]string) // disk to all devices that hang because of it, including itself
	for _, name := range hung {
		disk := diskOf(h.Files, name)
		if !slices.Contains(hung, disk) {
			disk = name // a partition of a disk that completes other I/O
		}
		switch culprits := m.culprits(h.Files, disk, hung); {
		case len(culprits) > 0:
			for _, culprit := range culprits {
				causes[culprit] = append(causes[culprit], name)
			}
		case !m.countsMayBeLost(h.Files, disk) || m.waitShare >= waitingShare:
			causes[disk] = append(causes[disk], name)
		case m.waitShare < 0:
			results.Doubt(deviceSubject(disk), errors.New("I/O is in flight and none completes, but none is in flight "+
				"below it; without /proc/pressure/io it is unknown whether the count is right"))
		}
	}
	vital := m.vitalThatHang(h, mounts)
	for disk, above := range causes {
		results.Add(m.finding(ctx, h, mounts, hungDisk{disk, above, vital[diskOf(h.Files, disk)]}), true)
	}
	findings, doubts := results.Done()
	if mountsErr != nil { // the disk hangs nevertheless; only the severity is unknown
		return findings, fmt.Errorf("which disks the node needs: %w", mountsErr)
	}
	return findings, doubts
}

// culprits returns the lowest hung disks below a device. A loop device's file may be on any disk, so any hung disk may
// be the cause.
func (m *ioHangState) culprits(files host.Files, disk string, hung []string) []string {
	var lowest []string
	for _, lower := range wholeStack(files, disk)[1:] {
		if slices.Contains(hung, lower) && !slices.ContainsFunc(wholeStack(files, lower)[1:], func(l string) bool {
			return slices.Contains(hung, l)
		}) {
			lowest = append(lowest, lower)
		}
	}
	isLoop := func(name string) bool { return strings.HasPrefix(m.stalls[name].device, fmt.Sprintf("%d:", majorLoop)) }
	if isLoop(disk) {
		for _, other := range hung {
			if !isLoop(other) && diskOf(files, other) == other && len(lowerDevices(files, other)) == 0 {
				lowest = append(lowest, other)
			}
		}
	}
	return lowest
}

// countsMayBeLost reports devices for which the kernel counts I/Os in flight up and down (bio-based, such as dm and
// md). For all others the count is the requests that the driver really has.
func (m *ioHangState) countsMayBeLost(files host.Files, disk string) bool {
	if _, err := files.List("/sys/block/" + disk + "/mq"); err == nil {
		return false
	}
	_, err := files.Link("/sys/block/" + disk + "/device")
	return err != nil
}

// vitalThatHang returns, by disk at the bottom, the node's own paths on filesystems whose own I/O hangs.
func (m *ioHangState) vitalThatHang(h *host.Host, mounts []mount.Mount) map[string][]string {
	found := make(map[string][]string)
	for _, v := range vitalDevices(h, mounts) {
		if m.stalls[v.name].held < m.settings.FatalAfter {
			continue
		}
		needsWaiters := m.countsMayBeLost(h.Files, diskOf(h.Files, v.name))
		if m.waitShare >= 0 && m.waitShare < waitingShare || m.waitShare < 0 && needsWaiters {
			continue // no task waits, or that is unknown
		}
		for _, disk := range wholeStack(h.Files, v.name) {
			found[disk] = append(found[disk], v.paths...)
		}
	}
	return found
}

// hungDisk is a hung disk, the devices that hang because of it, and the node's own paths on those.
type hungDisk struct {
	name         string
	above, vital []string
}

func (m *ioHangState) finding(ctx context.Context, h *host.Host, mounts []mount.Mount, d hungDisk) finding.Finding {
	longest := m.stalls[d.name].held
	for _, name := range d.above {
		longest = max(longest, m.stalls[name].held)
	}
	f := finding.Finding{
		Subject: deviceSubject(d.name), Severity: finding.Warning, Reason: reasonDiskHung,
		Message: fmt.Sprintf("disk %s completed no I/O for %s while some is in flight", d.name,
			longest.Round(time.Second)),
		Facts: map[string]string{"seconds": fmt.Sprint(int(longest.Seconds()))},
	}
	if len(d.vital) > 0 {
		f.Severity = finding.Fatal
	}
	checkkit.AddNeededFor(&f, d.vital)
	slices.Sort(d.above)
	if others := slices.DeleteFunc(d.above, func(n string) bool { return n == d.name }); len(others) > 0 {
		f.Facts["hangTogether"] = finding.JoinFirst(others, 20)
		f.Message += fmt.Sprintf("; also hang: %s", finding.JoinFirst(others, 5))
	}
	checkkit.AddAffectedPods(&f, podsOnDisk(ctx, h, mounts, d.name))
	return f
}
