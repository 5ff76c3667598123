package rules

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Forms that occur in many patterns.
const (
	// Command is a task's name: up to 15 bytes that the program chose itself, escaped if they are not printable.
	Command = `(?:\\x[0-9a-f]{2}|.){1,15}`
	// pciAddress is the kernel's name of a PCI device.
	pciAddress = `[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]`
	// netdev is a network device's name: the kernel allows no blanks, slashes or colons in it.
	netdev = `[^\s/:]{1,15}`
)

// crashRules match crashes of user programs. Their lines start with the program's name, so they are tried before every
// other rule: a program called "NMI: IOCK error" is a program.
//
//	arch/x86/mm/fault.c show_signal_msg, arch/x86/kernel/traps.c show_signal, arch/arm64/kernel/traps.c
func crashRules() []Rule {
	return []Rule{{
		ID: "app-crash", Reason: "AppCrash", Domain: CPU, Severity: finding.Info,
		Advice: "`coredumpctl info PID`, or the container's log; one program on one node again and again: its " +
			"bug or its memory, many programs at once: test the node's memory (`edac-util -v`).",
		Summary:  "a program crashed; many in a short time point to bad memory, a bad library or a crash loop",
		Literals: []string{"]: segfault at ", " sp:", "]: unhandled ", "] bad frame in "},
		Patterns: []string{
			`^(?P<subject>` + Command +
				`)\[(?P<pid>\d+)\]: segfault at [0-9a-f]+ ip (?:0x)?[0-9a-f]+ sp (?:0x)?[0-9a-f]+ error [0-9a-f]+`,
			`^(?:traps: )?(?P<subject>` + Command +
				`)\[(?P<pid>\d+)\] (?P<trap>[a-z][a-zA-Z0-9#: ]{2,40}?) ?ip:[0-9a-f]+ sp:[0-9a-f]+ (?:ssp:[0-9a-f]+ )?error:[0-9a-f]+`,
			`^(?P<subject>` + Command + `)\[(?P<pid>\d+)\]: unhandled (?P<trap>exception|signal|level [0-3] [a-z ]+)\b`,
			`^(?P<subject>` + Command + `)\[(?P<pid>\d+)\] bad frame in [a-z_0-9 ]+ frame:`,
		},
		Named: true, Kind: "process", Escalate: Rate{5, 10 * time.Minute}, EscalateSeverity: finding.Warning,
		Expiry: 10 * time.Minute,
	}}
}

// limitRules match reached limits of the machine or of a cgroup.
func limitRules() []Rule {
	return []Rule{{
		ID: "file-max-reached", Reason: "FileHandlesExhausted", Domain: CPU, Severity: finding.Fatal,
		Advice:   "`cat /proc/sys/fs/file-nr`; `lsof` counts by program; raise `fs.file-max`.",
		Summary:  "no program on the node can open another file: fs.file-max is reached", // fs/file_table.c
		Patterns: []string{`^VFS: file-max limit (?P<limit>\d+) reached`},
		Kind:     NodeKind, Expiry: 10 * time.Minute, ConfirmedBy: "file-handles",
	}, {
		ID: "pids-limit", Reason: "PIDsLimitReached", Domain: CPU, Severity: finding.Warning,
		// kernel/cgroup/pids.c
		Advice: "`cat /sys/fs/cgroup/PATH/pids.max` and pids.current: a fork bomb, or a limit too low (kubelet: " +
			"podPidsLimit).",
		Summary:  "a cgroup reached its limit of processes and threads: its programs cannot start new ones",
		Patterns: []string{`^cgroup: fork rejected by pids controller in (?P<cgroup>/.*)`},
		Kind:     "cgroup", Expiry: 10 * time.Minute, ConfirmedBy: "pids-limits",
	}, {
		ID: "audit-backlog", Reason: "AuditBacklogExceeded", Domain: CPU, Severity: finding.Warning,
		// kernel/audit.c
		Advice:   "`auditctl -s` (backlog, lost): fewer rules, a larger `auditctl -b`, or a faster disk for auditd.",
		Summary:  "audit records are produced faster than they are read: programs are slowed down, or records are lost",
		Patterns: []string{`^audit: audit_backlog=\d+ > audit_backlog_limit=\d+`, `^audit: (?:audit_lost=[1-9]|backlog limit exceeded$|kauditd (?:hold|retry) queue overflow)`},
		Kind:     NodeKind, Expiry: 10 * time.Minute,
	}}
}
