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
//	/proc/cmdline                                                         … clocksource=hpet …, only with a slow clock
//
// https://docs.kernel.org/timers/timekeeping.html, https://docs.kernel.org/admin-guide/kernel-parameters.html
//
// tsc, kvm-clock, hyperv_clocksource_tsc_page and arch_sys_counter take 20 ns and no system call; hpet and acpi_pm take
// a microsecond and a lock that all processors share; jiffies has a resolution of milliseconds.

const clockSourceDir = "/sys/devices/system/clocksource/clocksource0/"

// ClockSource finds kernels that fell back to a slow clock.
func ClockSource() detect.Check {
	return detect.Check{
		ID: "clock-source", Domain: "kernel",
		Summary: "the kernel reads the time from a slow clock source because it found the fast one unstable",
		Advice: "`dmesg | grep -i -e clocksource -e tsc` shows the reason. Most often the firmware stops the counter " +
			"in deep sleep states, or a virtual machine was migrated to another host: update the firmware, or " +
			"reboot. Where the counter is known to be stable, boot with `tsc=reliable`.",
		Doc: detect.Doc{
			Reads: []string{clockSourceDir + "{current,available}_clocksource",
				"/proc/cmdline, where the clock is a slow one"},
			Why: "Reading the time becomes fifty times slower and contends across all processors: busy pods lose a " +
				"tenth or more of their speed without a visible reason.",
			Faults: []detect.Fault{
				{Reason: "ClocksourceSlow", Severity: finding.Warning, When: "the current clock is hpet, acpi_pm, " +
					"pit, jiffies or refined-jiffies, and the kernel's command line does not select it"},
			},
			FalseAlarms: "A slow clock that the command line selects is not reported, nor is anything within 2 " +
				"minutes after boot, while the kernel still compares clocks.",
		},
		Every: 10 * time.Minute,
		Wakes: []detect.Wake{checkkit.KernelWake()},
		Run:   readClockSource,
	}
}

func readClockSource(_ context.Context, h *host.Host) ([]finding.Finding, error) {
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
		Subject: finding.Subject{Kind: "clocksource", Name: current}, Severity: finding.Warning,
		Reason: "ClocksourceSlow",
		Message: fmt.Sprintf("the kernel reads the time from %s, a slow clock; available are %s", current,
			checkkit.Sanitize(available, 120)),
		Facts: map[string]string{"current": current, "available": checkkit.Sanitize(available, 120)},
	}}, nil
}
