package rules

import (
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// One error number has many causes: ENOSPC is a full disk, but also a mount table at fs.mount-max, memory cgroups
// without an ID, an empty cpuset, inotify watches, a limit of namespaces; EDQUOT is a quota of a disk or of keys;
// EMFILE is descriptors or inotify instances; EAGAIN and ENOMEM of fork are limits of processes. So each rule names the
// failed operation, which is right before the error, and its path; an error with neither is reported with unknown
// cause.
const (
	noSpace = `[Nn]o space left on device`
	tooMany = `[Tt]oo many open files`
	// fileOperation is an operation on a file or a directory, onFile one with up to three paths.
	fileOperation = `(?:write|writev|pwrite|mkdir|mkdirat|open|openat|creat|create|symlink|link|rename|mknod|mkfifo|truncate|fallocate|fsync|sync|copy_file_range|copying|sendfile|setxattr|lsetxattr|chmod|lchown|touch|write error|short write|[Ww]rite (?:to|failed))`
	onFile        = fileOperation + `(?: \\*"?[^\s":]*/[^\s":]*"?){0,3}`
	// inCgroup is a path in the cgroup hierarchy, up to its last part; mark is punctuation around a path.
	inCgroup = mark + `/(?:sys/fs/cgroup|run/cgroup)/\S*?`
	mark     = "[`'\"\\\\]*"
)

// countedRules match resources that the kernel counts, and whose exhaustion has the errors of a full disk.
func countedRules() []Rule {
	return []Rule{{
		// mm/memcontrol.c: 65,535 IDs; a removed cgroup keeps its own while page cache refers to it
		ID: "daemon-cgroups-exhausted", Reason: "CgroupsExhausted", Domain: Memory, Severity: finding.Warning,
		Advice: "`cat /proc/cgroups` (num_cgroups of memory: 65,535 at most) and `grep dying /sys/fs/cgroup/cgroup.stat`; what removed " +
			"cgroups hold is freed by `echo 1 > /proc/sys/vm/drop_caches`, at a quiet time; cgroup.max.descendants of the parent.",
		Summary: "the kernel creates no more cgroups: its IDs of memory cgroups, or a limit of the parent, are used up; no disk is full",
		Patterns: []string{
			`^.*\bmkdir(?:at)? ` + inCgroup + mark + `: (?:` + noSpace + `|cannot allocate memory|resource temporarily unavailable)`,
			`^.*[Cc]reat(?:e|ing) cgroup(?: directory)? \S+: (?:` + noSpace + `|[Cc]annot allocate memory|Resource temporarily unavailable)`,
		},
		Kind: NodeKind, Expiry: hour, ConfirmedBy: "kernel-limits",
	}, {
		// kernel/cgroup/cpuset.c: a task may not enter a cpuset without a processor or a memory node
		ID: "daemon-cpuset-empty", Reason: "CpusetEmpty", Domain: CPU, Severity: finding.Warning,
		Advice: "`grep . /sys/fs/cgroup/PATH/cpuset.cpus* /sys/fs/cgroup/PATH/cpuset.mems*` of the path and its parents: an empty one has " +
			"no processor; processors that are offline (`lscpu`), or kubelet's CPU manager (`/var/lib/kubelet/cpu_manager_state`).",
		Summary: "a process cannot enter its cgroup, whose cpuset has no processor or memory node; no disk is full",
		Patterns: []string{
			`^.*` + inCgroup + `(?:cgroup\.procs|cgroup\.threads|tasks|cpuset\.[a-z_]+)` + mark + `: ` + noSpace,
			`^.*Failed to attach \d+ to \S+: ` + noSpace,
		},
		Kind: NodeKind, Expiry: hour,
	}, {
		// fs/notify/inotify: ENOSPC means watches, EMFILE instances
		ID: "daemon-inotify", Reason: "InotifyExhausted", Domain: CPU, Severity: finding.Warning,
		Advice: "`sysctl fs.inotify`: raise max_user_watches (no space left) or max_user_instances (too many open files); `find /proc/*/fd " +
			"-lname anon_inode:inotify` lists who has them.",
		Summary: "a daemon cannot watch files: the user's inotify watches or instances are used up; no disk is full",
		Patterns: []string{
			`^.*inotify watch limit reached`, // systemd's src/basic/inotify-util.c
			`^.*(?:inotify|fsnotify|directory watch|fs ?[Ww]atcher|[Ff]ile watcher)[^:]{0,300}(?:: [^:]{0,80})?: (?:` + tooMany + `|` + noSpace + `)`,
			`^.*\b(?:to (?:add|watch)|[Ww]atch(?:ing)?) [^:]{1,300}?(?:directory watch|watch|/\S+)(?:, err)?: ` + noSpace,
			`^(?:\S+: )?Failed to (?:enter waiting state|start): ` + tooMany, // of path units
		},
		Kind: NodeKind, Expiry: hour, ConfirmedBy: "inotify",
	}, {
		// security/keys/key.c
		ID: "daemon-keys-exhausted", Reason: "KernelKeysExhausted", Domain: System, Severity: finding.Warning,
		Advice: "`cat /proc/key-users` (fourth column: keys and quota), `sysctl kernel.keys`: raise maxkeys and maxbytes, for root " +
			"root_maxkeys and root_maxbytes. Each container has a session key of its own.",
		Summary:  "a user's quota of the kernel's keys is used up: containers cannot start; no disk has a quota",
		Patterns: []string{"^.*(?:session key(?:ring)?|[Kk]eyring|KEYRING|keyctl|add_key)[^:]{0,100}: (?:[Dd]isk quota exceeded|" + noSpace + ")"},
		Kind:     NodeKind, Expiry: hour, ConfirmedBy: "kernel-limits",
	}, {
		// kernel/ucount.c
		ID: "daemon-namespaces", Reason: "NamespaceLimitReached", Domain: System, Severity: finding.Warning,
		Advice:   "`sysctl user` (user.max_net_namespaces, max_user_namespaces and so on; 0 forbids them) against `lsns`.",
		Summary:  "the kernel creates no more namespaces of a kind: containers cannot start; no disk is full",
		Patterns: []string{`^.*(?:unshare|clone|fork/exec \S+|setns|(?:network|net|user|pid|ipc|uts|cgroup|new) namespac(?:e|es|ing)|nsenter)[^:]{0,100}(?:: [^:]{0,60})?: ` + noSpace},
		Exclude:  onFile + `: ` + noSpace + `|bind[ -]mount`,
		Kind:     NodeKind, Expiry: hour,
	}, {
		// fs/aio.c
		ID: "daemon-aio", Reason: "AIOExhausted", Domain: Storage, Severity: finding.Warning,
		Emitters: []Emitter{Kubelet, Runtime, Systemd, Multipathd},
		Advice:   "`sysctl fs.aio-nr fs.aio-max-nr`: raise fs.aio-max-nr; databases and QEMU reserve many.",
		Summary:  "a program cannot get a context for asynchronous I/O: fs.aio-nr is at fs.aio-max-nr",
		Patterns: []string{`^.*\bio_setup\b.{0,100}(?:failed|[Rr]esource temporarily unavailable|EAGAIN)`},
		Kind:     NodeKind, Expiry: hour, ConfirmedBy: "kernel-limits",
	}}
}

// spaceRules match the remaining ENOSPC and EDQUOT: disks, the mount table, and lines without a cause.
func spaceRules() []Rule {
	writers := append([]Emitter{Kubelet, Runtime, Systemd, Journald}, hostDaemons...)
	return []Rule{{
		ID: "daemon-disk-full", Reason: "DiskFull", Domain: Storage, Severity: finding.Warning,
		Emitters: writers,
		Advice: "`df -h` and `df -i` of the path in the line; `crictl rmi --prune`, `journalctl " +
			"--vacuum-size=1G`.",
		Summary: "a daemon could not write: its disk is full, or has no inode left",
		Patterns: []string{
			`^.*\b` + onFile + `\\*"?: ` + noSpace,
			`^.*(?:layer|snapshot|image|blob|content|commit|download|unpack|cop(?:y|ied)|untar|archive|boltdb|database|checkpoint)\b[^:]{0,200}: ` + noSpace,
			`^(?:\S+: )?Failed to (?:write|create|open|rotate|sync|allocate|save|copy|truncate|serialize)\b.*: ` + noSpace,
			// multipath-tools libmultipath/{alias,wwids,file}.c
			`^(?:update_bindings_file: (?:mkstemp|rename)|[Cc](?:an't|annot|ould not) (?:write|truncate|make|open) .{1,300}?) ?: ` + noSpace,
			`^Audit daemon (?:is low on disk space for logging|has no space left on logging partition|is suspending logging due to)`,
		},
		Exclude: `\b` + fileOperation + ` \\*"?/(?:sys|proc)/\S*: ` + noSpace +
			`|Failed to allocate directory watch`,
		Kind: NodeKind, Expiry: hour, ConfirmedBy: "disk-space",
	}, {
		ID: "daemon-disk-quota", Reason: "DiskQuotaExceeded", Domain: Storage, Severity: finding.Warning, Emitters: writers,
		Advice:  "`repquota -a`, `xfs_quota -x -c 'report -h'` or the quota of the directory on its server: `df` shows free space.",
		Summary: "a daemon could not write: a quota of its user, group or project is used up",
		Patterns: []string{`^.*\b` + onFile + `\\*"?: [Dd]isk quota exceeded`,
			`^(?:update_bindings_file: (?:mkstemp|rename)|[Cc](?:an't|annot|ould not) (?:write|truncate|make|open) .{1,300}?) ?: [Dd]isk quota exceeded`},
		Kind: NodeKind, Expiry: hour,
	}, {
		// fs/namespace.c, count_mounts
		ID: "daemon-mounts-exhausted", Reason: "MountLimitReached", Domain: Storage, Severity: finding.Warning,
		Advice: "`wc -l /proc/self/mountinfo` against `sysctl fs.mount-max`; `awk '{print $5}' /proc/self/mountinfo | sort | uniq -c | sort -n " +
			"| tail` shows which directory is stacked: its owner mounts there again and again.",
		Summary:  "the kernel makes no more mounts: the table is at fs.mount-max (of a disk: `df` of the device); pods cannot start",
		Patterns: []string{`^.*(?:mount src=|\b[Mm]ount(?:ing)? \S|to mount\b|mount (?:failed|point|through)|mount\(2\)|overlay mount|bind[ -]mount|remount|rootfs component|mount namespacing|fsconfig|move_mount|open_tree|fsmount|Mounting (?:command|arguments)).{0,900}` + noSpace},
		Kind:     NodeKind, Expiry: hour, ConfirmedBy: "kernel-limits",
	}, {
		ID: "daemon-no-space", Reason: "ResourceExhausted", Domain: System, Severity: finding.Warning,
		Emitters: writers,
		Advice: "`df -h` and `df -i`; where no disk is full: mounts (`wc -l /proc/self/mountinfo`, fs.mount-max), cgroups (`cat " +
			"/proc/cgroups`), inotify watches, keys (`cat /proc/key-users`), namespaces (`sysctl user`).",
		Summary:  "something ran out, and the line does not show whether it was a disk or a table of the kernel",
		Patterns: []string{`^.*[:"\\(] ?[Nn]o space left on device`, `^.*[:"\\(] ?[Dd]isk quota exceeded`},
		Kind:     NodeKind, Expiry: hour,
	}}
}

// processRules match limits of processes, threads, descriptors and memory.
func processRules() []Rule {
	return []Rule{{
		ID: "daemon-fork-failed", Reason: "ForkFailed", Domain: CPU, Severity: finding.Warning,
		Advice: "`cat /sys/fs/cgroup/PATH/pids.current` of the unit against `systemctl show -p TasksMax UNIT`; " +
			"`sysctl kernel.pid_max kernel.threads-max` for the node; no memory: `free -m`, `sysctl vm.overcommit_memory`.",
		Summary: "no new process or thread can be started: a limit of PIDs or threads is reached, or memory may not be reserved",
		Patterns: []string{
			`^.*(?:fork/exec|clone) \S+: (?:resource temporarily unavailable|cannot allocate memory)`,
			`^(?:runtime: |runtime/cgo: )?(?:failed to create new OS thread|pthread_create failed)`,
			`^fatal error: newosproc`,
			`^.*(?:failed to create new OS thread|pthread_create failed|nsexec.{0,40}: (?:unable to (?:fork|spawn)|failed to fork))`,
			`^(?:\S+: )?Failed to (?:fork|spawn \S+|run '[\w-]+' task): (?:Resource temporarily unavailable|Cannot allocate memory)`,
		},
		Kind: NodeKind, Expiry: hour, ConfirmedBy: "task-limits",
	}, {
		// fs/file_table.c: ENFILE
		ID: "daemon-file-handles", Reason: "FileHandlesExhausted", Domain: CPU, Severity: finding.Warning,
		Advice:   "`cat /proc/sys/fs/file-nr` against its third number; `lsof -n | awk '{print $1}' | sort | uniq -c` counts by program; raise `fs.file-max`.",
		Summary:  "no program on the node can open another file: fs.file-max is reached",
		Patterns: []string{`^.*: ` + tooMany + ` in system`},
		Kind:     NodeKind, Expiry: hour, ConfirmedBy: "file-handles",
	}, {
		ID: "daemon-descriptors", Reason: "DescriptorsExhausted", Domain: CPU, Severity: finding.Warning,
		Advice:   "`ls /proc/PID/fd` counts; `systemctl show -p LimitNOFILE UNIT`.",
		Summary:  "a daemon cannot open any more files or sockets: its own limit is reached",
		Patterns: []string{`^.*: ` + tooMany},
		Kind:     NodeKind, Expiry: hour, ConfirmedBy: "file-handles",
	}, {
		// EUCLEAN: XFS, ext4 and btrfs found themselves corrupt
		ID: "daemon-filesystem-corrupt", Reason: "FilesystemCorrupted", Domain: Storage, Severity: finding.Warning,
		Emitters: []Emitter{Kubelet, Runtime, Systemd, Journald},
		Advice:   "`findmnt -T PATH` names the filesystem, `dmesg` the fault; unmount it, then `fsck` or `xfs_repair`.",
		Summary:  "the filesystem of a path is corrupt",
		Patterns: []string{`^.*\\*"?/\S+: [Ss]tructure needs cleaning`, `^.*(?:[Mm]ount|fsconfig|statfs|write|open|sync)\b.{0,500}: [Ss]tructure needs cleaning`},
		Exclude:  `/(?:containerd|docker|containers/storage|buildkit)/\S+: [Ss]tructure needs cleaning`, // image-store-corrupt
		Kind:     NodeKind, Expiry: hour,
	}}
}
