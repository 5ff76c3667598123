// Package hardware finds faults of hardware: PCIe, temperature, sensors, memory, the watchdog.
package hardware

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// pcie-errors reads, of PCI devices that report errors (Advanced Error Reporting),
//
//	/sys/bus/pci/devices/0000:3b:00.0/aer_dev_correctable    RxErr 2             ("Receiver Error 2" before Linux 5.1)
//	                                                         BadTLP 0
//	                                                         TOTAL_ERR_COR 2     since boot
//	                                  aer_dev_nonfatal       … TOTAL_ERR_NONFATAL 0
//
// Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats (Linux 4.19),
// https://docs.kernel.org/PCI/pcieaer-howto.html
//
// The check reads the kernel's own counts: it accesses no device, so none wakes up. Linux 6.16 limits how often such
// errors are logged; the counts are complete. Fatal errors are not evaluated here: behind a dead link the kernel often
// cannot count them; their lines in the log are findings of their own (rule pcie-fatal).

const (
	pcieErrorsFor   = time.Hour // how long an error is reported after the last one
	pcieRate        = 60        // corrected errors in a minute
	maxPCIDevices   = 10_000
	pcieForgetEvery = time.Hour // devices without such files are checked again
)

// PCIeErrors finds PCIe devices whose transfers fail.
func PCIeErrors() detect.Check {
	c := &pcieCheck{devices: make(map[string]*pcieDevice)}
	return detect.Check{
		ID: "pcie-errors", Domain: "hardware",
		Summary: "transfers of a PCIe device fail",
		Advice: "`lspci -vvs DEVICE` shows what it is and the state of its link (LnkSta, DevSta). Reseat or replace " +
			"the card, riser or cable; update its firmware. pcie_aspm=off on the kernel's command line helps if only " +
			"power saving of the link is broken.",
		Doc: detect.Doc{
			Reads: []string{"/sys/bus/pci/devices/*/aer_dev_nonfatal", "/sys/bus/pci/devices/*/aer_dev_correctable"},
			Why:   "A disk or network card behind a bad link loses requests, becomes slow, or disappears.",
			Faults: []detect.Fault{
				{Reason: "PCIeUncorrectedError", Severity: finding.Warning,
					When: "a transfer was lost (non-fatal error); for an hour"},
				{Reason: "PCIeCorrectedError", Severity: finding.Warning, When: "60 transfers in a minute had to be " +
					"repeated, as with a bad slot, riser or cable; for an hour. A healthy link has a few a day"},
			},
			FalseAlarms: "\"Advisory Non-Fatal\" errors, which some devices report when they are asked for something " +
				"that they do not have, count as corrected; they are rarely that many.",
		},
		CounterBased: true,
		Every:        time.Minute, Deadline: 5 * time.Second,
		Wakes: []detect.Wake{checkkit.KernelWake()},
		Run:   c.run,
	}
}

// pcieCheck keeps the earlier counts.
type pcieCheck struct {
	devices map[string]*pcieDevice
	silent  map[string]bool // devices without such files
	reset   time.Duration   // uptime at which silent was emptied
}

func (c *pcieCheck) run(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	const root = "/sys/bus/pci/devices"
	names, err := checkkit.ListSorted(h.Files, root)
	if err != nil {
		return nil, err
	}
	now := h.Clock().SinceBoot
	if c.silent == nil || now-c.reset > pcieForgetEvery {
		c.silent, c.reset = make(map[string]bool), now
	}
	var results checkkit.Results
	reports := false
	for _, name := range names[:min(len(names), maxPCIDevices)] {
		if c.silent[name] {
			continue
		}
		counts, err := readAER(h.Files, path.Join(root, name))
		if errors.Is(err, fs.ErrNotExist) {
			c.silent[name] = true
			continue
		}
		reports = true
		subject := finding.Subject{Kind: "device", Name: name}
		if results.Doubt(subject, err) {
			continue
		}
		if c.devices[name] == nil {
			c.devices[name] = &pcieDevice{base: counts, since: now}
		}
		f, ok := c.devices[name].evaluate(counts, now)
		f.Subject = subject
		results.Add(f, ok)
	}
	maps.DeleteFunc(c.devices, func(name string, _ *pcieDevice) bool { return !slices.Contains(names, name) })
	if !reports {
		return nil, finding.NotApplicable("no PCI device reports errors to the kernel")
	}
	return results.Done()
}

// aerCounts are those of one device since boot.
type aerCounts struct {
	corrected, nonfatal uint64
	worst               string // the most frequent corrected error
}

// pcieDevice is the state kept for one device.
type pcieDevice struct {
	base      aerCounts     // where the current minute began
	since     time.Duration // uptime of that
	nonfatal  checkkit.RecentCount
	corrected checkkit.RecentCount
}

// evaluate compares the counters with those of a minute before. A wake may come at any time, so the rate is that of a
// minute at least.
func (d *pcieDevice) evaluate(now aerCounts, up time.Duration) (finding.Finding, bool) {
	if now.corrected < d.base.corrected || now.nonfatal < d.base.nonfatal {
		d.base = aerCounts{} // the device was replaced or reset
	}
	if lost := now.nonfatal - d.base.nonfatal; lost > 0 {
		d.nonfatal.Add(lost, up)
		d.base.nonfatal = now.nonfatal
	}
	elapsed := up - d.since
	repeated := now.corrected - d.base.corrected
	if float64(repeated) >= pcieRate*max(elapsed.Minutes(), 1) {
		d.corrected.Add(repeated, up)
		d.base.corrected = now.corrected
	}
	if elapsed >= time.Minute {
		d.base, d.since = now, up
	}
	f := finding.Finding{Severity: finding.Warning, Facts: map[string]string{
		"nonFatalSinceBoot":  fmt.Sprint(now.nonfatal),
		"correctedSinceBoot": fmt.Sprint(now.corrected),
	}}
	lost, many := d.nonfatal.Recent(up, pcieErrorsFor), d.corrected.Recent(up, pcieErrorsFor)
	switch {
	case lost:
		f.Reason, f.Message = "PCIeUncorrectedError", fmt.Sprintf("%d transfers were lost recently, %d since boot",
			d.nonfatal.Count, now.nonfatal)
	case many:
		f.Reason, f.Message = "PCIeCorrectedError",
			fmt.Sprintf("more than %d transfers in a minute had to be repeated, %d since boot; mostly %s",
				pcieRate, now.corrected, now.worst)
	}
	return f, lost || many
}

// readAER reads the counts of one device.
func readAER(files host.Files, dir string) (aerCounts, error) {
	var counts aerCounts
	var err error
	if counts.corrected, counts.worst, err = readAERFile(files, path.Join(dir, "aer_dev_correctable"),
		"TOTAL_ERR_COR"); err != nil {
		return aerCounts{}, err
	}
	counts.nonfatal, _, err = readAERFile(files, path.Join(dir, "aer_dev_nonfatal"), "TOTAL_ERR_NONFATAL")
	return counts, err
}

// readAERFile returns the total of one file, and the most frequent error. Names may contain blanks.
func readAERFile(files host.Files, name, totalName string) (total uint64, worst string, err error) {
	data, err := files.Read(name)
	if err != nil {
		return 0, "", err
	}
	most, found := uint64(0), false
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		at := strings.LastIndexByte(line, ' ')
		count, err := strconv.ParseUint(line[at+1:], 10, 64)
		if at < 0 || err != nil {
			return 0, "", fmt.Errorf("read %s: line %q: want a name and a number", name,
				checkkit.Sanitize(line, checkkit.MaxLine))
		}
		if key := line[:at]; key == totalName {
			total, found = count, true
		} else if count > most {
			most, worst = count, checkkit.Sanitize(key, checkkit.MaxLine)
		}
	}
	if !found {
		return 0, "", fmt.Errorf("read %s: no %s", name, totalName)
	}
	return total, worst, nil
}
