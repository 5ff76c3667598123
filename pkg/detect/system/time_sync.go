package system

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// time-sync asks the kernel with adjtimex(2), without changing anything, for
//
//	status    STA_UNSYNC (0x40) or not
//	maxerror  how wrong the clock may be, µs: grows by 500 µs a second, until who keeps the time sets it back
//	offset    what the kernel has still to correct
//
// and, only where nobody keeps the time, the names of all processes.
//
// https://man7.org/linux/man-pages/man2/adjtimex.2.html, kernel/time/ntp.c (NTP_PHASE_LIMIT is 16 s).
//
// Lost is STA_UNSYNC together with a maxerror of 16 s, as the Prometheus node mixin has it: STA_UNSYNC alone is set
// for ever where chronyd runs without rtcsync. The kernel needs nine hours to say so; 4 s mean two hours and a
// quarter without an update, and the slowest daemon, systemd-timesyncd, asks every 34 minutes. An offset of 50 ms is
// the mixin's too: leases and tokens stand more, traces and databases do not. All must last for ten minutes: a clock
// is stepped at boot and after a migration, and a daemon needs some minutes to trust its servers.
//
// Known false alarms, and what is done: a virtual machine whose hypervisor sets the clock (Hyper-V, Xen, KVM with its
// own clock) may do without a daemon; that is information there, not a warning. The first quarter of an hour after
// boot does not count. The clock's own jumps play no part: all times here are those since boot.

const TimeSyncID = "time-sync"

// The reasons.
const (
	reasonNoTimeDaemon   = "NoTimeDaemon"
	reasonUnsynchronised = "ClockUnsynchronised"
	reasonErrorGrows     = "ClockErrorGrows"
	reasonOffset         = "ClockOffset"
)

// TimeSyncSettings are the thresholds of time-sync. A finding that was raised is kept until the value is below three
// quarters of them.
type TimeSyncSettings struct {
	MaxError time.Duration `yaml:"maxError"` // how wrong the clock may be, by the kernel's own estimate
	Offset   time.Duration `yaml:"offset"`   // what is still to be corrected
}

// DefaultTimeSyncSettings returns the settings that are used unless the configuration says otherwise.
func DefaultTimeSyncSettings() TimeSyncSettings {
	return TimeSyncSettings{MaxError: 4 * time.Second, Offset: 50 * time.Millisecond}
}

// TimeSync finds nodes whose clock nobody keeps right.
func TimeSync(s TimeSyncSettings) detect.Check {
	return detect.Check{
		ID: TimeSyncID, Domain: "kernel",
		Summary: "nobody keeps the node's clock right, or it is wrong",
		Advice: "chronyc tracking, or timedatectl timesync-status, tells whether the daemon reaches its servers: " +
			"look at UDP port 123 and at the servers' names. Where no daemon is installed, install chrony; on a " +
			"virtual machine /dev/ptp_kvm or the cloud's own server is the best source.",
		Doc: detect.Doc{
			Reads: []string{"adjtimex(2), asked only", "the names of all processes, where the clock is not " +
				"synchronised"},
			Why: "Certificates and tokens are refused by a node whose clock is wrong by minutes, leases are lost, " +
				"logs and traces of pods do not fit together, and databases that compare clocks stop.",
			Faults: []detect.Fault{
				{Reason: reasonUnsynchronised, Severity: finding.Warning, When: "a time daemon runs, and the kernel " +
					"has not heard from it for nine hours (STA_UNSYNC, maxerror 16 s)"},
				{Reason: reasonNoTimeDaemon, Severity: finding.Warning, When: "the same, and no time daemon runs; " +
					"information on a virtual machine, whose hypervisor may set the clock"},
				{Reason: reasonErrorGrows, Severity: finding.Warning, When: "maxerror is 4 s: no update for more " +
					"than two hours, four times as long as the slowest daemon waits"},
				{Reason: reasonOffset, Severity: finding.Warning, When: "the clock is 50 ms off, by ntpd's or " +
					"systemd-timesyncd's own measure"},
			},
			FalseAlarms: "chronyd without rtcsync leaves STA_UNSYNC set: maxerror decides. The first 15 minutes " +
				"after boot do not count. Not seen: servers that tell the wrong time.",
		},
		Every:  time.Minute,
		Policy: finding.Policy{Raise: finding.Hold{Looks: 5, For: 10 * time.Minute}, Clear: finding.Hold{Looks: 2}},
		Run: func(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
			return lookAtClock(ctx, h, s)
		},
	}
}

func lookAtClock(ctx context.Context, h *host.Host, s TimeSyncSettings) ([]finding.Finding, error) {
	const settling = 15 * time.Minute
	if h.TimeClock == nil {
		return nil, fmt.Errorf("ask for the clock's state: %w", hosterr.ErrNotConfigured)
	}
	clock, err := h.TimeClock()
	if err != nil {
		return nil, err
	}
	if h.Clock().SinceBoot < settling {
		return nil, nil
	}
	f := finding.Finding{
		Check: TimeSyncID, Subject: checkkit.NodeSubject(h), Severity: finding.Warning,
		Facts: map[string]string{
			"unsynchronised": fmt.Sprint(clock.Unsynchronised), "maxError": clock.MaxError.String(),
			"offset": clock.Offset.String(),
		},
	}
	kept := func(limit time.Duration) time.Duration { return time.Duration(float64(limit) * checkkit.ClearRatio) }
	switch offset := clock.Offset.Abs(); {
	case !clock.Right():
		if err := nobodyKeepsTime(ctx, h, &f); err != nil {
			return nil, err
		}
	case s.MaxError > 0 && clock.MaxError >= kept(s.MaxError):
		f.Reason, f.BelowRaise = reasonErrorGrows, clock.MaxError < s.MaxError
		f.Message = fmt.Sprintf(
			"the clock may be wrong by %s and nobody corrects it: the last correction was about %s ago",
			clock.MaxError.Round(100*time.Millisecond), (clock.MaxError * 2000).Round(time.Minute))
	case s.Offset > 0 && offset >= kept(s.Offset):
		f.Reason, f.BelowRaise = reasonOffset, offset < s.Offset
		f.Message = fmt.Sprintf("the clock is %s off", offset.Round(time.Millisecond))
	default:
		return nil, nil
	}
	return []finding.Finding{f}, nil
}

// nobodyKeepsTime says whether it is for want of a daemon.
func nobodyKeepsTime(ctx context.Context, h *host.Host, f *finding.Finding) error {
	table, err := h.ProcessTable(ctx, time.Minute)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(table, func(p host.ProcStat) bool { return isTimeDaemon(p.Comm) })
	switch {
	case i >= 0:
		f.Reason, f.Message = reasonUnsynchronised, checkkit.Sanitize(table[i].Comm, 32)+
			" runs, but the clock is not synchronised: it reaches none of its servers, or does not trust them"
		f.Facts["daemon"] = checkkit.Sanitize(table[i].Comm, 32)
	case hypervisorClock(h.Files):
		f.Severity, f.Reason = finding.Info, reasonNoTimeDaemon
		f.Message = "no time daemon runs on this virtual machine: its clock is only as good as the hypervisor sets it"
	default:
		f.Reason, f.Message = reasonNoTimeDaemon, "the clock is not synchronised and no time daemon runs"
	}
	return nil
}

// isTimeDaemon knows those that discipline the kernel's clock, by the names that the kernel keeps (15 bytes).
func isTimeDaemon(comm string) bool {
	return slices.Contains([]string{"chronyd", "ntpd", "systemd-timesyn", "ptp4l", "phc2sys", "timemaster",
		"ntp-daemon", "openntpd"}, comm)
}

// hypervisorClock reports whether the machine reads the time from its hypervisor. One that uses the processor's own
// counter although the hypervisor's is there is virtual all the same.
func hypervisorClock(files host.Files) bool {
	text, err := files.Text(clockSourceDir + "available_clocksource")
	return err == nil && slices.ContainsFunc(strings.Fields(text), func(name string) bool {
		return name == "kvm-clock" || name == "xen" || strings.HasPrefix(name, "hyperv_clocksource") ||
			name == "vmware_clocksource"
	})
}
