package system

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/proc"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// time-sync reads with adjtimex(2), without changing anything,
//
//	status    STA_UNSYNC (0x40) or not
//	maxerror  the estimated error of the clock, µs: grows by 500 µs a second until a time daemon resets it
//	offset    the part that the kernel has still to correct
//
// and, only if the clock is not synchronised, the names of all processes.
//
// https://man7.org/linux/man-pages/man2/adjtimex.2.html, kernel/time/ntp.c (NTP_PHASE_LIMIT is 16 s).
//
// The thresholds of STA_UNSYNC with maxerror and of the offset are those of the Prometheus node mixin. A maxerror of 4
// s means two hours and a quarter without an update; the slowest daemon, systemd-timesyncd, polls every 34 minutes. All
// must last for ten minutes: a clock is stepped at boot and after a migration, and a daemon needs some minutes to
// select its servers.

// TimeSyncSettings are the thresholds of time-sync. A raised finding is kept until the value is below three quarters of
// them.
type TimeSyncSettings struct {
	MaxError time.Duration `yaml:"maxError"` // the error of the clock, as the kernel estimates it
	Offset   time.Duration `yaml:"offset"`   // the part still to be corrected
}

// DefaultTimeSyncSettings returns the settings that are used unless the configuration says otherwise.
func DefaultTimeSyncSettings() TimeSyncSettings {
	return TimeSyncSettings{MaxError: 4 * time.Second, Offset: 50 * time.Millisecond}
}

// TimeSync finds nodes whose clock is not synchronised.
func TimeSync(s TimeSyncSettings) detect.Check {
	return detect.Check{
		ID: "time-sync", Domain: "kernel",
		Summary: "the node's clock is not synchronised, or it is wrong",
		Advice: "`chronyc tracking` or `timedatectl timesync-status` shows whether the daemon reaches its servers: " +
			"check UDP port 123 and the names of the servers. Where no daemon is installed, install chrony; on a " +
			"virtual machine use /dev/ptp_kvm or the time server of the cloud.",
		Doc: detect.Doc{
			Reads: []string{"adjtimex(2), read only", "the names of all processes, where the clock is not " +
				"synchronised"},
			Why: "A node whose clock is wrong by minutes rejects certificates and tokens and loses leases; logs and " +
				"traces of pods cannot be correlated, and databases that compare clocks stop.",
			Faults: []detect.Fault{
				{Reason: "ClockUnsynchronised", Severity: finding.Warning, When: "a time daemon runs, and the kernel " +
					"has had no update from it for nine hours (STA_UNSYNC, maxerror 16 s)"},
				{Reason: "NoTimeDaemon", Severity: finding.Warning, When: "the same, and no time daemon runs; " +
					"information on a virtual machine, whose hypervisor may set the clock"},
				{Reason: "ClockErrorGrows", Severity: finding.Warning, When: "maxerror is 4 s: no update for more " +
					"than two hours, four times as long as the slowest daemon waits"},
				{Reason: "ClockOffset", Severity: finding.Warning, When: "the clock is off by 50 ms, as ntpd or " +
					"systemd-timesyncd measures it"},
			},
			FalseAlarms: "chronyd without rtcsync leaves STA_UNSYNC set: maxerror decides. The first 15 minutes " +
				"after boot do not count. Not detected: servers that send a wrong time.",
		},
		Every:  time.Minute,
		Policy: finding.Policy{Raise: finding.Hold{Runs: 5, For: 10 * time.Minute}, Clear: finding.Hold{Runs: 2}},
		Run:    s.run,
	}
}

func (s TimeSyncSettings) run(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	const settling = 15 * time.Minute
	if h.TimeClock == nil {
		return nil, fmt.Errorf("read the clock's state: %w", hosterr.ErrNotConfigured)
	}
	clock, err := h.TimeClock()
	if err != nil {
		return nil, err
	}
	if h.Clock().SinceBoot < settling {
		return nil, nil
	}
	f := finding.Finding{
		Subject: checkkit.NodeSubject(h), Severity: finding.Warning,
		Facts: map[string]string{
			"unsynchronised": fmt.Sprint(clock.Unsynchronised), "maxError": clock.MaxError.String(),
			"offset": clock.Offset.String(),
		},
	}
	offset := clock.Offset.Abs()
	errorGrew, errorBelow := checkkit.Reaches(float64(clock.MaxError), float64(s.MaxError))
	offsetHigh, offsetBelow := checkkit.Reaches(float64(offset), float64(s.Offset))
	switch {
	case !clock.Right():
		if err := explainUnsynchronised(ctx, h, &f); err != nil {
			return nil, err
		}
	case errorGrew:
		f.Reason, f.BelowRaise = "ClockErrorGrows", errorBelow
		f.Message = fmt.Sprintf(
			"the error of the clock may be %s and no daemon corrects it: the last correction was about %s ago",
			clock.MaxError.Round(100*time.Millisecond), (clock.MaxError * 2000).Round(time.Minute))
	case offsetHigh:
		f.Reason, f.BelowRaise = "ClockOffset", offsetBelow
		f.Message = fmt.Sprintf("the clock is off by %s", offset.Round(time.Millisecond))
	default:
		return nil, nil
	}
	return []finding.Finding{f}, nil
}

// explainUnsynchronised reports whether a time daemon runs.
func explainUnsynchronised(ctx context.Context, h *host.Host, f *finding.Finding) error {
	table, err := h.ProcessTable(ctx, 2*time.Minute) // zombies lists them each minute
	if err != nil {
		return err
	}
	i := slices.IndexFunc(table, func(p proc.Stat) bool { return isTimeDaemon(p.Comm) })
	switch {
	case i >= 0:
		f.Reason, f.Message = "ClockUnsynchronised", checkkit.Sanitize(table[i].Comm, 32)+
			" runs, but the clock is not synchronised: it reaches none of its servers, or selects none of them"
		f.Facts["daemon"] = checkkit.Sanitize(table[i].Comm, 32)
	case hypervisorClock(h.Files):
		f.Severity, f.Reason = finding.Info, "NoTimeDaemon"
		f.Message = "no time daemon runs on this virtual machine: its clock is only as accurate as the hypervisor " +
			"sets it"
	default:
		f.Reason, f.Message = "NoTimeDaemon", "the clock is not synchronised and no time daemon runs"
	}
	return nil
}

// isTimeDaemon reports whether a process disciplines the kernel's clock, by its name in the kernel (15 bytes).
func isTimeDaemon(comm string) bool {
	return slices.Contains([]string{"chronyd", "ntpd", "systemd-timesyn", "ptp4l", "phc2sys", "timemaster",
		"ntp-daemon", "openntpd"}, comm)
}

// hypervisorClock reports whether the machine reads the time from its hypervisor. A machine that uses the processor's
// counter although the hypervisor's is available is virtual nevertheless.
func hypervisorClock(files host.Files) bool {
	text, err := files.Text(clockSourceDir + "available_clocksource")
	return err == nil && slices.ContainsFunc(strings.Fields(text), func(name string) bool {
		return name == "kvm-clock" || name == "xen" || strings.HasPrefix(name, "hyperv_clocksource") ||
			name == "vmware_clocksource"
	})
}
