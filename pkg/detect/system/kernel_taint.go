package system

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

// kernel-taint reads
//
//	/proc/sys/kernel/tainted    4224     a sum of bits, here O (4096) and D (128)
//
// A bit that is set stays so until the next boot: the file tells that something happened in this boot even where the
// kernel's log has long lost the lines, but neither when nor what exactly.
//
// https://docs.kernel.org/admin-guide/tainted-kernels.html
//
// For this reason no bit is fatal here. D may stem from a driver that failed once at boot, weeks ago, on a node that
// has served well since; the line of an oops, which tells when, is judged by itself (rule kernel-oops). M is also set
// by the i915 driver on early silicon; the lines of a machine check are judged by themselves. And what the state
// shows need not be what the line said: a bad rss counter sets no bit at all.
//
// Known false alarms, and what is done: the bits of a normal distribution (proprietary, out-of-tree, unsigned, staging
// and live-patched modules, firmware and ACPI workarounds, S which any tool that writes an MSR sets, U, X, T, J, and W,
// which every third long-running node has) are no findings; they are told among the facts.

const kernelTaintID = "kernel-taint"

// KernelTaint finds kernels that had a grave error since they were booted.
func KernelTaint() detect.Check {
	return detect.Check{
		ID: kernelTaintID, Domain: "kernel",
		Summary: "the kernel had an error in this boot after which it says that it cannot be trusted fully",
		Advice: "Look for what it was: journalctl -k -b | grep -E 'Oops|BUG|Hardware Error|soft lockup'. Nothing but " +
			"a reboot clears it: drain the node and reboot it when it suits; after a machine check have the hardware " +
			"tested first.",
		Doc: detect.Doc{
			Reads: []string{"/proc/sys/kernel/tainted"},
			Why: "After an oops locks may be held for ever and memory may be wrong; after a bad page or a machine " +
				"check data may be. Pods fail in odd ways that no restart mends. The kernel's own watch for hung " +
				"tasks stops at an oops.",
			Faults: taintFaults(),
			FalseAlarms: "Bits of a normal distribution (P, O, E, C, K, A, I, S, U, X, T, J) and W, a warning, are " +
				"no findings. D may come from a driver that failed at boot on a node that serves well: it is a " +
				"warning, never fatal. M is also set by i915 on early silicon.",
		},
		Every: time.Minute,
		Run: func(_ context.Context, h *host.Host) ([]finding.Finding, error) {
			return lookAtTaint(h)
		},
	}
}

// taintBit is one bit that is worth telling, the gravest first in taintBits.
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
		{5, "B", "BadPageFound", finding.Warning, "the kernel found a page of its memory in a state that cannot be"},
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

func lookAtTaint(h *host.Host) ([]finding.Finding, error) {
	const file = "/proc/sys/kernel/tainted"
	text, err := h.Files.Text(file)
	if err != nil {
		return nil, err
	}
	mask, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
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
		Check: kernelTaintID, Subject: checkkit.NodeSubject(h), Severity: found[0].severity, Reason: found[0].reason,
		Message: "since it was booted, " + strings.Join(texts, "; ") + "; only a reboot clears that",
		Facts:   map[string]string{"tainted": text, "letters": taintLetters(mask)},
	}}, nil
}

// taintLetters names all bits as the kernel prints them in its reports.
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
