package hardware

import (
	"context"
	"fmt"
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
//	/sys/class/watchdog/watchdog0/bootstatus    32           flags of WDIOC_GETBOOTSTATUS, which the hardware kept
//	/sys/class/watchdog/watchdog0/identity      iTCO_wdt
//
// https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-class-watchdog,
// https://docs.kernel.org/watchdog/watchdog-api.html

// HardwareWatchdog finds nodes that were reset by their hardware watchdog.
func HardwareWatchdog() detect.Check {
	return detect.Check{
		ID: "hardware-watchdog", Domain: "hardware",
		Summary: "the node was reset by its hardware watchdog",
		Advice: "Read the last messages of the kernel: `journalctl -k -b -1`, /sys/fs/pstore, the serial console, " +
			"the log of the BMC (`ipmitool sel list`). If it happens again, take the node out of service and have " +
			"it tested.",
		Doc: detect.Doc{
			Reads: []string{"/sys/class/watchdog/*/{bootstatus,identity}"},
			Why: "The machine hung so badly that no program fed the watchdog: all pods were lost without a trace, and " +
				"it will most likely happen again.",
			Faults: []detect.Fault{
				{Reason: "WatchdogReset", Severity: finding.Warning, When: "bootstatus has WDIOF_CARDRESET; reported " +
					"for the first 24 hours after boot"},
				{Reason: "WatchdogHardwareFault", Severity: finding.Warning,
					When: "bootstatus reports overheating, a fan or the power; for as long"},
			},
			FalseAlarms: "Some boards keep the flag until power is cut, and show it after each warm boot. A watchdog " +
				"that is not used is no fault.",
		},
		Every: time.Hour,
		Run:   checkWatchdogs,
	}
}

func checkWatchdogs(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	const dir = "/sys/class/watchdog"
	names, err := checkkit.ListSorted(h.Files, dir)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, finding.NotApplicable("the node has no hardware watchdog")
	}
	if h.Clock().SinceBoot > checkkit.BootFactTTL {
		return nil, nil
	}
	var results checkkit.Results
	for _, name := range names[:min(len(names), 16)] {
		subject := finding.Subject{Kind: "watchdog", Name: name}
		status, err := checkkit.ReadNumber(h.Files, dir+"/"+name+"/bootstatus")
		if !results.Unread(subject, err) { // an old kernel does not show it
			results.Add(watchdogFinding(h, subject, status))
		}
	}
	return results.Done()
}

// watchdogFinding reports the flags of <linux/watchdog.h>.
func watchdogFinding(h *host.Host, subject finding.Subject, status int) (finding.Finding, bool) {
	const cardReset = 0x20
	var causes []string
	for _, flag := range []struct {
		bit  int
		text string
	}{{0x01, "it had overheated"}, {0x02, "a fan had failed"}, {0x10, "the voltage was too low"},
		{0x40, "the voltage was too high"}} {
		if status&flag.bit != 0 {
			causes = append(causes, flag.text)
		}
	}
	f := finding.Finding{
		Subject: subject, Severity: finding.Warning, Reason: "WatchdogHardwareFault",
		Facts: map[string]string{"bootstatus": strconv.Itoa(status)},
	}
	identity, err := h.Files.Text("/sys/class/watchdog/" + subject.Name + "/identity")
	if err != nil {
		identity = subject.Name
	}
	f.Facts["identity"] = checkkit.Sanitize(identity, 64)
	switch {
	case status&cardReset != 0:
		f.Reason, causes = "WatchdogReset", append([]string{"it reset the machine, which had hung"}, causes...)
	case len(causes) == 0:
		return finding.Finding{}, false
	}
	f.Message = fmt.Sprintf("the hardware watchdog %s reports of the last boot: %s", f.Facts["identity"],
		strings.Join(causes, ", "))
	return f, true
}
