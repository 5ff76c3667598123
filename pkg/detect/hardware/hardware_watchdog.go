package hardware

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

// hardware-watchdog reads
//
//	/sys/class/watchdog/watchdog0/bootstatus    32           flags of WDIOC_GETBOOTSTATUS, as the hardware kept them over the boot
//	/sys/class/watchdog/watchdog0/identity      iTCO_wdt
//
// https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-class-watchdog,
// https://docs.kernel.org/watchdog/watchdog-api.html
//
// WDIOF_CARDRESET (0x20) is the proof that the watchdog reset the machine: it hung so badly that nothing fed the dog.
// It is told for the first day of the boot that followed. What the board says of heat, fans and power at that time is
// told with it. That nobody feeds a watchdog is no fault: it is off unless somebody wants it.
//
// Known false alarms, and what is done: boards that keep the flag until power is cut tell of it after each warm boot;
// it is gone a day later.

const hardwareWatchdogID = "hardware-watchdog"

// HardwareWatchdog finds nodes that were reset by their hardware watchdog.
func HardwareWatchdog() detect.Check {
	return detect.Check{
		ID: hardwareWatchdogID, Domain: "hardware",
		Summary: "the node was reset by its hardware watchdog",
		Advice: "Read what the kernel said last: journalctl -k -b -1, /sys/fs/pstore, the serial console, the log of " +
			"the management controller (ipmitool sel list). Where it happens again, take the node out of service and " +
			"have it tested.",
		Doc: detect.Doc{
			Reads: []string{"/sys/class/watchdog/*/{bootstatus,identity}"},
			Why: "The machine hung so that nothing of it ran: all pods were lost without a trace, and it will most " +
				"likely happen again.",
			Faults: []detect.Fault{
				{Reason: "WatchdogReset", Severity: finding.Warning, When: "bootstatus has WDIOF_CARDRESET; told for " +
					"the first 24 hours after boot"},
				{Reason: "WatchdogHardwareFault", Severity: finding.Warning,
					When: "bootstatus tells of overheating, a fan or the power; told for as long"},
			},
			FalseAlarms: "Some boards keep the flag until power is cut. A watchdog that is not used is no fault.",
		},
		Every: time.Hour,
		Run: func(_ context.Context, h *host.Host) ([]finding.Finding, error) {
			return lookAtWatchdogs(h)
		},
	}
}

func lookAtWatchdogs(h *host.Host) ([]finding.Finding, error) {
	const dir = "/sys/class/watchdog"
	names, err := h.Files.List(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(names) == 0 {
		return nil, finding.NotApplicable("the node has no hardware watchdog")
	}
	if err != nil {
		return nil, err
	}
	if h.Clock().SinceBoot > checkkit.BootFactTTL {
		return nil, nil
	}
	slices.Sort(names)
	doubts := make(map[finding.Subject]error)
	var findings []finding.Finding
	for _, name := range names[:min(len(names), 16)] {
		subject := finding.Subject{Kind: "watchdog", Name: name}
		status, err := checkkit.ReadNumber(h.Files, dir+"/"+name+"/bootstatus")
		if errors.Is(err, fs.ErrNotExist) {
			continue // a kernel that shows none, or the device has gone
		}
		if err != nil {
			doubts[subject] = err
			continue
		}
		if f, ok := watchdogFinding(h, subject, status); ok {
			findings = append(findings, f)
		}
	}
	return findings, finding.Partial(doubts)
}

// watchdogFinding words the flags of <linux/watchdog.h>.
func watchdogFinding(h *host.Host, subject finding.Subject, status int) (finding.Finding, bool) {
	const cardReset = 0x20
	var said []string
	for _, flag := range []struct {
		bit  int
		text string
	}{{0x01, "it had overheated"}, {0x02, "a fan had failed"}, {0x10, "the voltage was too low"},
		{0x40, "the voltage was too high"}} {
		if status&flag.bit != 0 {
			said = append(said, flag.text)
		}
	}
	f := finding.Finding{
		Check: hardwareWatchdogID, Subject: subject, Severity: finding.Warning, Reason: "WatchdogHardwareFault",
		Facts: map[string]string{"bootstatus": strconv.Itoa(status)},
	}
	identity, err := h.Files.Text("/sys/class/watchdog/" + subject.Name + "/identity")
	if err != nil {
		identity = subject.Name
	}
	f.Facts["identity"] = checkkit.Sanitize(identity, 64)
	switch {
	case status&cardReset != 0:
		f.Reason, said = "WatchdogReset", append([]string{"it reset the machine, which had hung"}, said...)
	case len(said) == 0:
		return finding.Finding{}, false
	}
	f.Message = fmt.Sprintf("the hardware watchdog %s tells of the last boot: %s", f.Facts["identity"],
		strings.Join(said, ", "))
	return f, true
}
