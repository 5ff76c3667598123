package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

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
