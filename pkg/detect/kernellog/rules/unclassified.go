package rules

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// unclassifiedRules recognise what no other rule does: a line that the kernel logged at the level of errors or worse,
// that begins with who says it, and that says that something failed. They say no more than that: information, an hour,
// a few subjects at a time, never in the first minutes of a machine, when drivers try what may be there. Where the level
// is not known they read nothing.
func unclassifiedRules() []Rule {
	const (
		grace = 5 * time.Minute
		most  = 8
	)
	words := append(trouble(), "wrong", "Wrong", "leaked", "panic", "not idle", "operable", "underflow", "negative",
		"nderrun", "_err", "attention", "efused", "evoked", "o space", "out of ", "Out of ", "damaged", "oops", "BUG", "missing",
		"not set", "denied", "ttempt to", "xception", "idn't", "id not", "nconsistent", "incorrect", "Incorrect", "ERR")
	unless := append(harmless(), mistakes()...)
	return []Rule{{
		ID: "unclassified-device-error", Reason: "UnclassifiedKernelError", Domain: Hardware, Severity: finding.Info,
		Summary: "the kernel logged an error of a device, and no rule knows what it means",
		Advice: "Look for what the line means in the driver's documentation or the vendor's notes; `dmesg -x` around it, " +
			"`lspci -vv -s ADDRESS` or `lsblk` for the device. Again and again: the device or its driver needs attention.",
		Literals: words, Words: words, Unless: unless,
		Patterns: []string{`^(?P<driver>[A-Za-z][\w.<>-]{0,31}) (?P<subject>[\w.:<>-]{0,31}\d[\w.:<>-]{0,31}?)(?: [^:]{1,60})?: .`},
		Kind:     "device", LevelKnown: true, AtMost: most, BootGrace: grace, Expiry: time.Hour,
	}, {
		ID: "unclassified-kernel-error", Reason: "UnclassifiedKernelError", Domain: System, Severity: finding.Info,
		Summary: "a part of the kernel logged an error, and no rule knows what it means",
		Advice: "Look for the words of the line and what it begins with in the kernel's or the distribution's reports; " +
			"`dmesg -x` around it shows what came before. Again and again: a fault of that part, or of what it serves.",
		Literals: words, Words: words, Unless: unless,
		Patterns: []string{
			`^(?P<subject>[A-Za-z][\w./<>:-]{1,40}?)(?:\[\d+\]|\(\w{1,20}\))?(?: \([^)]{1,60}\))?: .`,
			`^\[(?P<subject2>[A-Za-z][\w:./<>-]{1,40})(?: \[[\w-]+\])?\]:? .`,
			`^(?P<subject3>[A-Z][\w.-]{1,30}(?: [\w.-]{1,30}){1,3})(?: \([^)]{1,60}\))?: .`,
		},
		Kind: "subsystem", LevelKnown: true, AtMost: most, BootGrace: grace, Expiry: time.Hour,
	}}
}

// mistakes are words of errors that are no fault of the machine: what somebody asked for and was refused, what a
// machine does not have, what its firmware never had right, details of a report whose head another rule has.
func mistakes() []string {
	return []string{
		" option", "Option", "argument", "parameter", "nvalid value", "nvalid mount", "nvalid magic", "agic number", "superblock", "uperblock magic",
		"nsupport", "not support", "t support", "not implement", "not allowed", "ermission", "must be", "should be", "please ", "Please ",
		"nknown ", "nrecogni", "deprecated", "obsolete", "ignor", "skipping", "is disabled", "fall back", "falling back", "allback",
		"irmware Bug", "irmware Warn", "BIOS", "ACPI", "EDID", "_DSM", "probe", "robing", "regist",
		"invalid length", "invalid resource", "policy", "ignature", "certificate", "comm ", "comm:", "syscall", "capab", "ioctl",
		"rdmsr", "wrmsr", "perfctr", "verifier", "selftest", "self-test", "self test", "Direct-Access", "ANSI: ",
	}
}
