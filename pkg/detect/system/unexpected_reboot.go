package system

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/tailfile"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/system/wtmp"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// unexpected-reboot reads the end of
//
//	/var/log/wtmp    records of 384 bytes (400 on arm64): ut_type 2, BOOT_TIME, at each boot;
//	                 ut_type 1, RUN_LVL, of the user "shutdown", at each orderly shutdown
//
// https://man7.org/linux/man-pages/man5/utmp.5.html; systemd writes them (systemd-update-utmp), `last -x` shows them.
//
// Two consecutive boots without a shutdown between them prove that the machine went down without an orderly shutdown,
// provided that an earlier record proves that this system writes shutdown records at all. A changed boot ID proves
// nothing, nor does an agent that was not stopped in order: it alone may have been killed. If the file cannot prove
// either (rotated a while ago, no persistent /var, systemd built without utmp, as in the newest distributions), the
// check does not apply.

// UnexpectedReboot finds nodes that went down without an orderly shutdown.
func UnexpectedReboot() detect.Check {
	return detect.Check{
		ID: "unexpected-reboot", Domain: "kernel",
		Summary: "the node went down without an orderly shutdown: a crash, a reset or a loss of power",
		Advice: "Check the last messages before it went down: `journalctl -b -1 -n 100`, /sys/fs/pstore, /var/crash, " +
			"the serial console and the log of the management controller (`ipmitool sel list`). If none of them " +
			"shows a cause, suspect the power supply, or the host of a virtual machine.",
		Doc: detect.Doc{
			Reads: []string{"/var/log/wtmp"},
			Why: "All pods of the node were killed without notice, and data that they had not written are lost. A machine " +
				"that crashed twice will crash again.",
			Faults: []detect.Fault{
				{Reason: "UnexpectedReboot", Severity: finding.Warning,
					When: "the login records show two boots without a shutdown between them; reported in the first " +
						"24 hours after boot"},
			},
			FalseAlarms: "`reboot -f`, `kexec -e`, and a virtual machine that was switched off. Does not apply where " +
				"the records cannot prove it, or the clock was wrong at boot.",
		},
		Every: time.Hour,
		Run:   new(rebootState).run,
	}
}

// rebootState keeps the result of this boot: a later run cannot know more, least of all after a jump of the clock.
type rebootState struct {
	decided  bool
	findings []finding.Finding
	err      error
}

func (m *rebootState) run(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	if h.Clock().SinceBoot > checkkit.BootFactTTL {
		return nil, nil
	}
	if m.decided {
		return append([]finding.Finding(nil), m.findings...), m.err
	}
	findings, err := checkReboots(h)
	if _, notApplicable := errors.AsType[*finding.NotApplicableError](err); err == nil || notApplicable {
		m.decided, m.findings, m.err = true, findings, err
	}
	return append([]finding.Finding(nil), findings...), err
}

func checkReboots(h *host.Host) ([]finding.Finding, error) {
	const file, most = "/var/log/wtmp", 4 << 20
	data, size, err := tailfile.Tail(h.Files, file, most)
	if errors.Is(err, fs.ErrNotExist) || err == nil && size == 0 {
		return nil, finding.NotApplicable("there are no login records, which would show shutdowns")
	}
	if err != nil {
		return nil, err
	}
	records, err := wtmp.ParseLogins(data, size)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return evaluateReboots(h, records)
}

// evaluateReboots inspects the record before that of this boot. The records are those of boots and shutdowns only.
func evaluateReboots(h *host.Host, records []wtmp.Login) ([]finding.Finding, error) {
	// between the kernel's start and the record of it, and for a clock that was set since
	const slack = 15 * time.Minute
	last := len(records) - 1
	for last >= 0 && records[last].Shutdown {
		last--
	}
	if last < 0 || records[last].At.Sub(checkkit.BootTime(h.Clock())).Abs() > slack {
		return nil, finding.NotApplicable("the login records do not show this boot")
	}
	before := records[:last]
	if !slices.ContainsFunc(before, func(r wtmp.Login) bool { return r.Shutdown }) {
		return nil, finding.NotApplicable("the login records do not show whether shutdowns are recorded here")
	}
	previous := before[len(before)-1]
	if previous.Shutdown {
		return nil, nil
	}
	up, down := previous.At.UTC().Format(time.RFC3339), records[last].At.UTC().Format(time.RFC3339)
	return []finding.Finding{{
		Subject: checkkit.NodeSubject(h), Severity: finding.Warning, Reason: "UnexpectedReboot",
		Message: fmt.Sprintf("the machine, up since %s, was booted again at %s without an orderly shutdown", up, down),
		Facts:   map[string]string{"previousBoot": up, "boot": down},
	}}, nil
}
