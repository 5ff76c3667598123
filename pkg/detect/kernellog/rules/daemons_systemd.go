package rules

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/distro"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// unitPattern matches the units of a table, whose names may contain "*".
func unitPattern(units []string) string {
	names := make([]string, len(units))
	for i, unit := range units {
		names[i] = strings.ReplaceAll(regexp.QuoteMeta(unit), `\*`, `[\w-]+`)
	}
	return `(?:` + strings.Join(names, "|") + `)\.service`
}

const (
	// systemUnit are units that the rest of the machine needs.
	systemUnit = `(?:systemd-(?:journald|udevd|networkd|logind|resolved|timesyncd|machined)|dbus(?:-broker)?|NetworkManager|chronyd?|ntpd?|multipathd|iscsid|auditd|polkit|sshd?|node-?problem-?detector|nodeagent)\.service`
	// oneUnit is a unit as systemd names it at the start of a line.
	oneUnit = `[\w:@.\\-]{1,255}\.(?:service|mount|socket|slice|scope|swap|device|automount|path|timer)`
)

// notOurUnits matches units of user sessions and containers, and transient units: their failures concern their owners.
const notOurUnits = `^(?:Unit )?(?:session-\S+\.scope|user@\d+\.service|user-\S+\.slice|run-\S+|var-lib-\S+\.mount|cri-containerd-\S+|crio-\S+|docker-[0-9a-f]{12,64}\.scope|libpod-\S+|libcontainer\S*|app-\S+)`

// systemdRules match lines of PID 1. Until 234 units "entered failed state".
func systemdRules() []Rule {
	// the units that a node needs to serve pods
	kubeletUnit, runtimeUnit := unitPattern(distro.KubeletUnits()), unitPattern(distro.RuntimeUnits())
	failed := func(unit string) []string {
		return []string{
			`^(?P<subject>` + unit + `): Failed with result '(?P<result>[\w-]+)'`,
			`^Unit (?P<subject2>` + unit + `) entered failed state`,
			`^(?P<subject3>` + unit + `)(?: failed\.$|: Unit entered failed state)`,
		}
	}
	flapping := func(unit string) []string {
		return []string{
			`^(?P<subject>` + unit + `): Start request repeated too quickly`,
			`^start request repeated too quickly for (?P<subject2>` + unit + `)$`,
			`^(?P<subject3>` + unit + `): Scheduled restart job, restart counter is at (?:[5-9]|\d{2,})\.`,
		}
	}
	ended := func(unit string) []string {
		return []string{`^(?P<subject>` + unit +
			`): [Mm]ain process exited, code=(?:(?:killed|dumped), status=(?P<signal>(?:9/KILL|6/ABRT|11/SEGV|7/BUS|4/ILL|8/FPE|31/SYS))|exited, status=(?P<status>[1-9]\d*))`}
	}
	restarted := func(unit string) []string {
		return []string{
			`^(?P<subject>` + unit +
				`): (?:Scheduled restart job, restart counter is at [1-4]\.|Service \S+ expired, scheduling restart|Service has no hold-off time.*, scheduling restart)`,
			`^(?P<subject2>` + unit + `):? (?:Service hold-?off|holdoff) time over, scheduling restart`,
		}
	}
	often := Rate{5, 20 * time.Minute}
	return []Rule{{
		ID: "systemd-dead", Reason: "SystemdDead", Domain: System, Severity: finding.Fatal,
		Advice: "PID 1 is gone: drain the node and reboot it (`echo b` into /proc/sysrq-trigger if nothing else " +
			"answers); `coredumpctl info 1`.",
		Summary: "PID 1 crashed: no service can be started or stopped until the node is rebooted",
		Patterns: []string{`^(?:Freezing execution|.{1,80}, freezing(?:\.|$))`,
			`^Caught <(?:SEGV|ABRT|BUS|ILL|FPE|QUIT|SYS)>`},
		Kind: NodeKind, Report: "systemd-dead", Expiry: UntilBoot,
	}, {
		ID: "kubelet-unit-failed", Reason: "KubeletNotRunning", Domain: Kubernetes, Severity: finding.Warning,
		Advice:  "`systemctl status kubelet`, `journalctl -u kubelet -e`: the last lines before it ended.",
		Summary: "kubelet's unit failed",
		Patterns: append(failed(kubeletUnit),
			`^Failed to start (?:(?P<subject4>`+kubeletUnit+`)|(?P<description>kubelet\b|Kubernetes Kubelet|Kubernetes systemd probe|Kubelet|Lightweight Kubernetes|Rancher Kubernetes))`),
		Kind: "unit", Report: "kubelet-unit", Expiry: hour, ConfirmedBy: "kubelet-health",
	}, {
		ID: "kubelet-unit-flapping", Reason: "KubeletRestartsOften", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "`journalctl -u kubelet -e`: the last lines before each end; `systemctl reset-failed kubelet` " +
			"lets it start again.",
		Summary: "kubelet exits repeatedly", Patterns: flapping(kubeletUnit),
		Kind: "unit", Expiry: hour, ConfirmedBy: "kubelet-restarts",
	}, {
		ID: "kubelet-restarted", Reason: "KubeletRestartsOften", Domain: Kubernetes, Severity: finding.Warning,
		Advice:  "`journalctl -u kubelet -e`: the last lines before each end.",
		Summary: "kubelet exits repeatedly", Patterns: restarted(kubeletUnit),
		Kind: "unit", Raise: often, Expiry: hour, ConfirmedBy: "kubelet-restarts",
	}, {
		// counts like node-problem-detector, whoever restarts kubelet
		ID: "kubelet-started", Reason: "KubeletRestartsOften", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "`journalctl -u kubelet -e`: does it end by itself, or does a tool (configuration management, " +
			"watchdog) restart it?",
		Summary:  "kubelet is started again and again",
		Patterns: []string{`^Started (?P<subject>` + kubeletUnit + `|kubelet(?:\.service)?|Kubernetes [Kk]ubelet|kubelet: The Kubernetes Node Agent|Kubelet)(?: - .*|\.|$)`},
		Kind:     "unit", Raise: often, Expiry: hour, ConfirmedBy: "kubelet-restarts",
	}, {
		ID: "kubelet-killed", Reason: "KubeletNotRunning", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "`journalctl -u kubelet -e`; 9/KILL: out of memory (`dmesg`) or a watchdog; 6/ABRT: systemd's " +
			"watchdog.",
		Summary:  "kubelet was killed, crashed, or exited with an error",
		Patterns: ended(kubeletUnit),
		Kind:     "unit", Report: "kubelet-unit", Expiry: hour, ConfirmedBy: "kubelet-health",
	}, {
		ID: "runtime-unit-failed", Reason: "RuntimeNotRunning", Domain: Kubernetes, Severity: finding.Warning,
		Advice:  "`systemctl status containerd`, `journalctl -u containerd -e`: the last lines before it ended.",
		Summary: "the container runtime's unit failed",
		Patterns: append(failed(runtimeUnit),
			`^Failed to start (?:(?P<subject4>`+runtimeUnit+`)|(?P<description>containerd\b|[Dd]ocker(?: Application Container Engine|\.$)|Container Runtime Interface))`),
		Kind: "unit", Report: "runtime-unit", Expiry: hour, ConfirmedBy: "runtime-health",
	}, {
		ID: "runtime-unit-flapping", Reason: "RuntimeRestartsOften", Domain: Kubernetes, Severity: finding.Warning,
		Advice: "`journalctl -u containerd -e`: the last lines before each end; `systemctl reset-failed " +
			"containerd` lets it start again.",
		Summary:  "the container runtime exits repeatedly",
		Patterns: flapping(runtimeUnit),
		Kind:     "unit", Expiry: hour, ConfirmedBy: "runtime-health",
	}, {
		ID: "runtime-restarted", Reason: "RuntimeRestartsOften", Domain: Kubernetes, Severity: finding.Warning,
		Advice:   "`journalctl -u containerd -e`: the last lines before each end.",
		Summary:  "the container runtime exits repeatedly",
		Patterns: restarted(runtimeUnit),
		Kind:     "unit", Raise: often, Expiry: hour, ConfirmedBy: "runtime-health",
	}, {
		ID: "runtime-started", Reason: "RuntimeRestartsOften", Domain: Kubernetes, Severity: finding.Warning,
		Advice:   "`journalctl -u containerd -e`: does it end by itself, or does a tool restart it?",
		Summary:  "the container runtime is started again and again",
		Patterns: []string{`^Started (?P<subject>` + runtimeUnit + `|containerd container runtime|Docker Application Container Engine|Container Runtime Interface for OCI.*?)(?: - .*|\.|$)`},
		Kind:     "unit", Raise: often, Expiry: hour, ConfirmedBy: "runtime-health",
	}, {
		ID: "runtime-killed", Reason: "RuntimeNotRunning", Domain: Kubernetes, Severity: finding.Warning,
		Advice:   "`journalctl -u containerd -e`; 9/KILL: out of memory (`dmesg`) or a watchdog.",
		Summary:  "the container runtime was killed, crashed, or exited with an error",
		Patterns: ended(runtimeUnit),
		Kind:     "unit", Report: "runtime-unit", Expiry: hour, ConfirmedBy: "runtime-health",
	}, {
		ID: "unit-hung", Reason: "SystemdUnitHung", Domain: System, Severity: finding.Warning,
		Advice: "`cat /proc/PID/stack` of its processes (`systemctl status UNIT`): what they wait for, mostly a " +
			"disk or a network filesystem.",
		Summary: "a service missed its watchdog, or does not exit when it is killed: it hangs in the kernel",
		Patterns: []string{`^(?P<subject>` + oneUnit + `):? [Ww]atchdog timeout(?: \(limit|!)`, `^(?P<subject2>` +
			oneUnit + `): Processes still around after (?:final )?SIGKILL`, `^(?P<subject3>` + oneUnit +
			`) still around after (?:final )?SIGKILL`},
		Exclude: notOurUnits,
		Kind:    "unit", Expiry: hour,
	}, {
		ID: "unit-flapping", Reason: "SystemdUnitFlapping", Domain: System, Severity: finding.Warning,
		Advice: "`journalctl -u UNIT -e`: the last lines before each end; `systemctl reset-failed UNIT` lets it " +
			"start again.",
		Summary: "a service exits repeatedly", Patterns: flapping(oneUnit),
		Exclude: notOurUnits,
		Kind:    "unit", Expiry: hour,
	}, {
		ID: "unit-restarted", Reason: "SystemdUnitFlapping", Domain: System, Severity: finding.Warning,
		Advice:  "`journalctl -u UNIT -e`: the last lines before each end.",
		Summary: "a service exits repeatedly", Patterns: restarted(oneUnit),
		Exclude: notOurUnits,
		Kind:    "unit", Raise: often, Expiry: hour,
	}, {
		ID: "container-unit-oom", Reason: "ContainerOOMKilled", Domain: Memory, Severity: finding.Info,
		Advice: "The container reached its own limit: `kubectl describe pod` shows the limit; raise it, or mend " +
			"the leak.",
		Summary:  "a container reached its memory limit and the kernel killed one of its processes",
		Patterns: []string{`^(?P<subject>(?:cri-containerd-|crio-|docker-[0-9a-f]|libpod-|kubepods)\S{0,250}): A process of this unit has been killed by the OOM killer`},
		Kind:     "unit", Report: "unit-oom", Expiry: 10 * time.Minute, ConfirmedBy: "oom-kills",
	}, {
		ID: "unit-oom", Reason: "OOMKilling", Domain: Memory, Severity: finding.Warning,
		Advice:  "`systemctl show -p MemoryMax UNIT` (its own limit), or the node ran out of memory: `dmesg`.",
		Summary: "the kernel killed a process of a service because memory ran out",
		Patterns: []string{`^(?P<subject>` + oneUnit +
			`): (?:A process of this unit has been killed by the OOM killer|Failed with result 'oom-kill')`},
		Exclude: `^(?:cri-containerd-|crio-|docker-|libpod-|kubepods)`,
		Kind:    "unit", Report: "unit-oom", Expiry: hour, ConfirmedBy: "oom-kills",
	}, {
		ID: "system-unit-failed", Reason: "SystemdUnitFailed", Domain: System, Severity: finding.Warning,
		Advice:  "`systemctl status UNIT`, `journalctl -u UNIT -e`; `systemctl restart UNIT`.",
		Summary: "a service that the machine needs failed",
		Patterns: append(failed(systemUnit),
			ended(systemUnit)...),
		Kind: "unit", Report: "system-unit", Expiry: hour,
	}, {
		ID: "mount-failed", Reason: "FstabMountMissing", Domain: Storage, Severity: finding.Warning,
		Advice: "`systemctl status UNIT`, `findmnt --verify` checks /etc/fstab, `lsblk -f` shows the disks and " +
			"their UUIDs.",
		Summary: "a filesystem could not be mounted, or its disk did not appear",
		Patterns: []string{
			`^Failed to mount (?P<subject>.{1,200}?)\.?$`, `^Timed out waiting for device (?P<subject2>.{1,200}?)\.?$`,
			`^Dependency failed for (?P<subject3>/.{1,200}?|(?:local-fs\.target - |remote-fs\.target - )?(?:Local|Remote) File Systems)\.?$`,
			`^(?:\S+: )?Job (?P<subject5>\S{1,255})\.device/start (?:timed out|failed with result 'timeout')`,
			`^(?P<subject4>[\w:@.\\-]{1,255}\.mount):? (?:Failed with result '|[Mm]ount process exited, code=exited,? status=[1-9])`,
		},
		Exclude: `^(?:run-|var-lib-kubelet-|var-lib-docker-|var-lib-containerd-)`,
		Kind:    "mount", Report: "mount", Expiry: hour, ConfirmedBy: "fstab-mounts",
	}, {
		ID: "emergency-mode", Reason: "EmergencyMode", Domain: System, Severity: finding.Warning,
		Advice: "At the console: `systemctl --failed`, `journalctl -xb`; mostly a line of /etc/fstab whose disk " +
			"is gone (`nofail`).",
		Summary:  "the machine could not boot completely and waits in emergency mode for input at its console",
		Patterns: []string{`^(?:Started|Starting|Reached target) (?:emergency\.\w+ - )?Emergency (?:Shell|Mode)`},
		Kind:     NodeKind, Report: "emergency", Expiry: hour,
	}, {
		// On every second machine some unit fails: only information.
		ID: "unit-failed", Reason: "SystemdUnitFailed", Domain: System, Severity: finding.Info,
		Advice:  "`systemctl status UNIT`, `journalctl -u UNIT -e`.",
		Summary: "a unit failed",
		Patterns: append(append(failed(oneUnit), ended(oneUnit)...),
			`^Failed to (?:start|listen on) (?P<subject4>`+oneUnit+`)(?: - .{0,200})?\.?$`,
			`^Failed to (?:start|listen on) (?P<subject9>(?P<description>.{1,200}?))\.?$`,
			`^Dependency failed for (?P<subject5>`+oneUnit+`) - .{0,200}$`,
			`^Dependency failed for (?P<subject10>.{1,200}?)\.?$`,
			`^(?P<subject6>`+oneUnit+
				`):? (?:Failed at step [A-Z_]+ spawning |[Cc]ontrol process exited, code=(?:(?:killed|dumped),? status=|exited,? status=[1-9])|[Ss]tart(?:-\w+)? operation timed out|State '[\w-]+' timed out|stop-\w+ timed out)`,
			`^(?P<subject8>`+oneUnit+`): Failed to run '[\w-]+' task: `,
			`^(?:`+oneUnit+`: )?Job (?P<subject7>`+oneUnit+
				`)/start failed with result '(?:dependency|timeout|failed)'`),
		Exclude: notOurUnits + `|^Failed to start (?:Session|User Manager|run-|transient|Transient|User Runtime)`,
		Kind:    "unit", Report: "unit-failed", Expiry: hour,
	}}
}

// journalRules match lines of journald and systemd-oomd.
func journalRules() []Rule {
	return slices.Concat(emittedBy([]Emitter{Journald}, []Rule{{
		ID: "journal-corrupted", Reason: "JournalCorrupted", Domain: System, Severity: finding.Info,
		Advice:  "`journalctl --verify`; once after a power cut is normal, again: `smartctl -a` for its disk.",
		Summary: "a journal file was not closed cleanly: the machine lost power or crashed, or its disk is damaged",
		Patterns: []string{`^File (?P<subject>/\S{1,255}) corrupted or uncleanly shut down, renaming and replacing`,
			`^(?P<subject>/\S{1,255}): Journal file corrupted, rotating`},
		Kind: "file", Expiry: hour,
	}, {
		ID: "journal-not-written", Reason: "JournalNotWritten", Domain: System, Severity: finding.Warning,
		Advice:   "`systemctl status systemd-journald`, `df -h /var/log/journal`; `journalctl --vacuum-size=500M`.",
		Summary:  "journald cannot write its files",
		Patterns: []string{`^Failed to (?:write entry \(|create new \w+ journal|open (?:system|runtime) journal|rotate /)`},
		Exclude:  `Read-only file system|No space left on device|Input/output error|: Argument list too long|, rotating before retrying`,
		Kind:     NodeKind, Expiry: hour,
	}, {
		ID: "journal-lost", Reason: "JournalMessagesLost", Domain: System, Severity: finding.Info,
		Advice: "The unit in the line logs too much: mend it, or raise RateLimitBurst in journald.conf " +
			"(`systemd-analyze cat-config systemd/journald.conf`).",
		Summary: "messages arrived faster than journald accepts them, and some were dropped",
		// "Forwarding to syslog missed": the journal has them, but a syslog daemon reads too slowly.
		Patterns: []string{`^Suppressed \d+ messages from (?P<subject>\S+)`, `^Missed \d+ kernel messages`},
		Kind:     "unit", Raise: Rate{5, 10 * time.Minute}, Expiry: hour, // a burst, as at boot, is normal
	}}), emittedBy([]Emitter{Coredump}, []Rule{{
		// Unlike the kernel's lines, it comes for each signal that dumps core. The program chooses its name.
		ID: "program-dumped-core", Reason: "AppCrash", Domain: CPU, Severity: finding.Info,
		Advice:  "`coredumpctl info PID` has the stack; many programs: test the node's memory (`edac-util -v`).",
		Summary: "a program crashed; many in a short time point to bad memory, a bad library or a crash loop",
		Patterns: []string{`^(?:\[.{1,8}\] )?Process (?P<pid>\d+) \((?P<subject>` + Command +
			`)\) of user \d+ dumped core`},
		Kind: "process", Escalate: Rate{5, 10 * time.Minute}, EscalateSeverity: finding.Warning,
		Expiry: 10 * time.Minute,
	}}), emittedBy([]Emitter{Abrt}, []Rule{{
		// abrt-notification: the lines that node-problem-detector's abrt-adaptor knows.
		ID: "abrt-program-crashed", Reason: "AppCrash", Domain: CPU, Severity: finding.Info,
		Advice: "`abrt-cli list` (or `abrt list`) has the reports and stacks; many programs in a short time: test the " +
			"node's memory (`edac-util -v`).",
		Summary: "a program crashed, or ended with an exception that it does not handle",
		Patterns: []string{
			`^\[?Process (?P<pid>\d+) \((?P<subject>[^)]{1,64})\) (?:of user \d+ )?(?:crashed in |encountered an uncaught \S+ exception)`,
			`^Display server (?P<subject2>\S+) crash in `,
		},
		Kind: "process", Escalate: Rate{5, 10 * time.Minute}, EscalateSeverity: finding.Warning,
		Expiry: 10 * time.Minute,
	}, {
		ID: "abrt-kernel-fault", Reason: "KernelOops", Domain: CPU, Severity: finding.Warning,
		Advice: "`abrt-cli list` (or `abrt list`) has the kernel's report; `journalctl -k -b -1 -e` the end of the boot " +
			"before: drain the node and reboot it, if it has not been.",
		Summary:  "the kernel had an oops or a panic, of which a report was saved",
		Patterns: []string{`^System encountered a (?P<kind>fatal|non-fatal) error in `},
		Kind:     NodeKind, Expiry: hour,
	}}), emittedBy([]Emitter{Oomd}, []Rule{{
		ID: "oomd-killed", Reason: "OOMKilling", Domain: Memory, Severity: finding.Warning,
		Advice:   "`oomctl` shows pressure and limits; `journalctl -u systemd-oomd -e` what it killed and why.",
		Summary:  "systemd-oomd killed the processes of a cgroup because memory was short",
		Literals: []string{"Killed /", "emory pressure for /", "emory used ("},
		Patterns: []string{`^Killed (?P<subject>/\S{1,255}) due to (?:memory|swap)`,
			`^(?:Memory pressure for (?P<subject2>/\S{1,255}) is \S+ > |Memory used \()`},
		Kind: "cgroup", Report: "oomd", Expiry: hour, ConfirmedBy: "oom-kills",
	}}))
}
