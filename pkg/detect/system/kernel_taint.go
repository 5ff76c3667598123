package system

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// kernel-taint reads
//
//	/proc/sys/kernel/tainted    4224     a sum of bits, here O (4096) and D (128)
//
// https://docs.kernel.org/admin-guide/tainted-kernels.html
//
// A bit stays set until the next boot: it proves an error in this boot even if the kernel's log has lost the lines, but
// shows neither its time nor its cause. So no bit is fatal; the lines of an oops or a machine check are evaluated on
// their own (rules kernel-oops, machine-check-…). Nor does each such line set a bit: a bad rss counter sets none.

// KernelTaint finds kernels that had a severe error since boot.
func KernelTaint() detect.Check {
	return detect.Check{
		ID: "kernel-taint", Domain: "kernel",
		Summary: "the kernel marked itself as tainted after a severe error in this boot",
		Advice: "Find the cause: `journalctl -k -b | grep -E 'Oops|BUG|Hardware Error|soft lockup'`. Only a reboot " +
			"clears it: drain the node and reboot it at a convenient time; after a machine check test the hardware " +
			"first.",
		Doc: detect.Doc{
			Reads: []string{"/proc/sys/kernel/tainted"},
			Why: "After an oops locks may stay held and memory may be inconsistent; after a bad page or a machine " +
				"check data may be corrupt. Pods fail in ways that no restart repairs. The kernel's own detection of " +
				"hung tasks stops at an oops.",
			Faults: taintFaults(),
			FalseAlarms: "Bits that are set on healthy distributions (P, O, E, C, K, A, I, S, U, X, T, J) and W, a " +
				"warning, are only among the facts. D may come from a driver that failed at boot on a node that has " +
				"worked well since: it is a warning, never fatal. M is also set by i915 on early silicon.",
		},
		Every: time.Minute,
		Run:   readTaint,
	}
}

// taintBit is one reported bit; taintBits lists the most severe first.
type taintBit struct {
	number   int
	letter   string
	reason   string
	severity finding.Severity
	text     string
}

func taintBits() []taintBit {
	return []taintBit{
		{7, "D", "KernelDied", finding.Warning, "the kernel had an oops or hit a BUG"},
		{4, "M", "MachineCheckOccurred", finding.Warning,
			"a processor reported a hardware error that was not corrected"},
		{5, "B", "BadPageFound", finding.Warning, "the kernel found a page of its memory in an impossible state"},
		{14, "L", "SoftLockupOccurred", finding.Info,
			"a processor ran kernel code for more than 20 s without rescheduling"},
		{1, "F", "ModuleForced", finding.Info, "a kernel module was loaded by force"},
		{3, "R", "ModuleForced", finding.Info, "a kernel module was unloaded by force"},
	}
}

func taintFaults() []detect.Fault {
	var faults []detect.Fault
	for _, b := range taintBits() {
		if len(faults) == 0 || faults[len(faults)-1].Reason != b.reason {
			faults = append(faults, detect.Fault{Reason: b.reason, Severity: b.severity,
				When: fmt.Sprintf("taint bit %d (%s) is set: %s since the last boot", b.number, b.letter, b.text)})
		}
	}
	return faults
}

func readTaint(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	mask, err := checkkit.ReadCount(h.Files, "/proc/sys/kernel/tainted")
	if err != nil {
		return nil, err
	}
	var found []taintBit
	var texts []string
	for _, b := range taintBits() {
		if mask&(1<<b.number) != 0 {
			found = append(found, b)
			texts = append(texts, fmt.Sprintf("%s (%s)", b.text, b.letter))
		}
	}
	if len(found) == 0 {
		return nil, nil
	}
	return []finding.Finding{{
		Subject: checkkit.NodeSubject(h), Severity: found[0].severity, Reason: found[0].reason,
		Message: "since it was booted, " + strings.Join(texts, "; ") + "; only a reboot clears that",
		Facts:   map[string]string{"tainted": fmt.Sprint(mask), "letters": taintLetters(mask)},
	}}, nil
}

// taintLetters names all bits with the letters of the kernel's reports.
func taintLetters(mask uint64) string {
	const letters = "PFSRMBUDAWCIOELKXTNJ"
	var set strings.Builder
	for i, letter := range letters {
		if mask&(1<<i) != 0 {
			set.WriteRune(letter)
		}
	}
	return set.String()
}
