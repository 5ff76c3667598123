package system

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// clock-source reads
//
//	/sys/devices/system/clocksource/clocksource0/current_clocksource      tsc
//	/sys/devices/system/clocksource/clocksource0/available_clocksource    tsc hpet acpi_pm
//	/proc/cmdline                                                         … clocksource=hpet …, only where the clock is a slow one
//
// https://docs.kernel.org/timers/timekeeping.html, https://docs.kernel.org/admin-guide/kernel-parameters.html
//
// Every program asks for the time, most of them many times for each request. With tsc, kvm-clock,
// hyperv_clocksource_tsc_page or arch_sys_counter that takes 20 ns and no system call; with hpet, acpi_pm or jiffies
// a microsecond and a lock that all processors share, or a resolution of milliseconds. A kernel uses these only when
// it gave up the good one, which it says once in its log ("Marking clocksource 'tsc' as unstable").
//
// Known false alarms, and what is done: a slow clock that somebody asked for on the kernel's command line is none; a
// source that was marked unstable while a better one is in use (tsc beside kvm-clock) is none.

const (
	clockSourceID  = "clock-source"
	clockSourceDir = "/sys/devices/system/clocksource/clocksource0/"
)

// ClockSource finds kernels that fell back to a slow clock.
func ClockSource() detect.Check {
	return detect.Check{
		ID: clockSourceID, Domain: "kernel",
		Summary: "the kernel reads the time from a slow clock because it gave up the good one",
		Advice: "dmesg | grep -i -e clocksource -e tsc tells why. Most often it is firmware that stops the counter " +
			"in deep sleep states, or a virtual machine that was moved to another processor: update the firmware, or " +
			"reboot; where the counter is known to be good, boot with tsc=reliable.",
		Doc: detect.Doc{
			Reads: []string{clockSourceDir + "{current,available}_clocksource",
				"/proc/cmdline, where the clock is a slow one"},
			Why: "Asking for the time becomes fifty times slower on all processors together: busy pods lose a tenth " +
				"and more of their speed, for no reason that they can see.",
			Faults: []detect.Fault{
				{Reason: "ClocksourceSlow", Severity: finding.Warning, When: "the current clock is hpet, acpi_pm, " +
					"pit, jiffies or refined-jiffies, and nobody asked for it on the kernel's command line"},
			},
			FalseAlarms: "A slow clock that the command line asks for. Nothing is said of the first minutes after " +
				"boot, in which clocks are still compared.",
		},
		Every: 10 * time.Minute,
		Wakes: []detect.Wake{checkkit.KernelWake()},
		Run: func(_ context.Context, h *host.Host) ([]finding.Finding, error) {
			return lookAtClockSource(h)
		},
	}
}

func lookAtClockSource(h *host.Host) ([]finding.Finding, error) {
	const settling = 2 * time.Minute
	current, err := h.Files.Text(clockSourceDir + "current_clocksource")
	if err != nil {
		return nil, err
	}
	if current == "" {
		return nil, fmt.Errorf("read %scurrent_clocksource: empty", clockSourceDir)
	}
	if !slices.Contains([]string{"hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies"}, current) ||
		h.Clock().SinceBoot < settling {
		return nil, nil
	}
	cmdline, err := h.Files.Text("/proc/cmdline")
	if err != nil {
		return nil, err
	}
	options := strings.Fields(cmdline)
	if slices.Contains(options, "clocksource="+current) || slices.Contains(options, "notsc") {
		return nil, nil
	}
	available, err := h.Files.Text(clockSourceDir + "available_clocksource")
	if err != nil {
		return nil, err
	}
	return []finding.Finding{{
		Check: clockSourceID, Subject: finding.Subject{Kind: "clocksource", Name: current}, Severity: finding.Warning,
		Reason: "ClocksourceSlow",
		Message: fmt.Sprintf("the kernel reads the time from %s, a slow clock; it has left %s", current,
			checkkit.Sanitize(available, 120)),
		Facts: map[string]string{"current": current, "available": checkkit.Sanitize(available, 120)},
	}}, nil
}
