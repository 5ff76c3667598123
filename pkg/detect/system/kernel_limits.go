package system

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/mountinfo"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// kernel-limits reads
//
//	/proc/1/mountinfo, /proc/sys/fs/mount-max    100000                mounts of the host's namespace, and how many are possible
//	/proc/sys/fs/{aio-nr,aio-max-nr}             65536                 requests that io_setup(2) reserved, of the machine
//	/proc/key-users                              0:  6 5/5 4/1000000 83/25000000    UID: references, keys/ready, keys and
//	                                                                                bytes that count, of the quota
//	/proc/cgroups                                memory	4	27	1       cgroups of the memory controller, removed ones too
//
// https://docs.kernel.org/admin-guide/sysctl/fs.html, https://docs.kernel.org/security/keys/core.html,
// mm/memcontrol.c (MEM_CGROUP_ID_MAX)

// maxMemoryCgroups is how many IDs the kernel has for memory cgroups: 16 bits, without 0.
const maxMemoryCgroups = 1<<16 - 1

// stacked is the number of mounts on one directory that no program makes on purpose.
const stacked = 64

// KernelLimits finds nodes that are close to a limit of the kernel whose error looks like that of a full disk.
func KernelLimits(s UsageSettings) detect.Check {
	memory := usageState{}
	return detect.Check{
		ID: "kernel-limits", Domain: "kernel",
		Summary: "mounts, asynchronous I/O, keys or memory cgroups are close to the kernel's limits",
		Advice: "The message names the limit and what uses it up. A stacked directory: its owner (a volume driver, a snap, a unit that " +
			"starts again and again) mounts there without unmounting; restart it, then unmount one at a time. Raise fs.mount-max, " +
			"fs.aio-max-nr, kernel.keys.root_maxkeys or kernel.keys.maxkeys with sysctl and a file in /etc/sysctl.d. Memory cgroups: " +
			"see `dying-cgroups`.",
		Doc: detect.Doc{
			Reads: []string{"the host's mount table and /proc/sys/fs/mount-max", "/proc/sys/fs/{aio-nr,aio-max-nr}", "/proc/key-users",
				"/proc/cgroups"},
			Why: "At its limit the kernel refuses a mount and a memory cgroup with \"no space left on device\", a key with \"disk quota " +
				"exceeded\", and asynchronous I/O with \"resource temporarily unavailable\": pods, databases and virtual machines do not " +
				"start, and no disk is full.",
			Faults: []detect.Fault{
				{Reason: "MountsNearLimit", Severity: finding.Fatal,
					When: "the host's mount table has 80 % of fs.mount-max (warning), or 95 % (fatal: no pod can start)"},
				{Reason: "MountsStacked", Severity: finding.Warning,
					When: fmt.Sprintf("%d mounts or more lie on one directory, each over the one before", stacked)},
				{Reason: "AIONearLimit", Severity: finding.Warning, When: "80 % of fs.aio-max-nr are reserved"},
				{Reason: "KeysNearLimit", Severity: finding.Warning,
					When: "a user has 80 % of the keys, or of their bytes, that its quota permits; each container has one"},
				{Reason: "MemoryCgroupsNearLimit", Severity: finding.Fatal,
					When: "80 % of the 65,535 memory cgroups exist, with those that were removed and are still in use (warning), or 95 % " +
						"(fatal: no pod can start)"},
			},
			FalseAlarms: "None known. Programs that reserve asynchronous I/O once, and all of it, are found, too: the next one fails. " +
				"Not detected: the mounts of other namespaces.",
		},
		Condition: detect.KernelProblem(),
		Every:     time.Minute,
		Policy:    finding.Policy{Clear: finding.Hold{Runs: 2}},
		Run: func(_ context.Context, h *host.Host) ([]finding.Finding, error) {
			l := limits{host: h, settings: s, memory: memory}
			l.check("mounts", l.mounts)
			l.check("asynchronous I/O", l.aio)
			l.check("keys", l.keys)
			l.check("memory cgroups", l.memoryCgroups)
			if len(l.errs) == l.checked {
				return nil, errors.Join(l.errs...)
			}
			return l.results.Done()
		},
	}
}

// limits is one run of the check.
type limits struct {
	host     *host.Host
	settings UsageSettings
	memory   usageState
	results  checkkit.Results
	errs     []error
	checked  int
}

// check reads one limit; a failure does not affect the others. A kernel without the file has no such limit.
func (l *limits) check(name string, read func(finding.Subject) error) {
	l.checked++
	subject := finding.Subject{Kind: "kernel-limit", Name: name}
	if err := read(subject); err != nil && (!errors.Is(err, fs.ErrNotExist) || name == "mounts") {
		l.results.Doubt(subject, err)
		l.errs = append(l.errs, err)
	}
}

// near adds a finding about a limit that is near.
func (l *limits) near(subject finding.Subject, reason, what string, u usage, mayBeFatal bool) {
	l.results.Add(l.memory.near(l.settings, finding.Finding{
		Subject: subject, Reason: reason, Message: fmt.Sprintf(what, u),
		Facts: map[string]string{"used": fmt.Sprint(u.used), "limit": fmt.Sprint(u.limit)},
	}, u, mayBeFatal))
}

func (l *limits) mounts(subject finding.Subject) error {
	hidden, atLeast := 0, ""
	table, err := mount.Recent(l.host)
	if cut, ok := errors.AsType[*mountinfo.CutError](err); ok {
		hidden = cut.Hidden
	}
	table, cut, err := mount.Known(table, err)
	if err != nil {
		return err
	}
	if cut != nil {
		atLeast = "at least "
	}
	most := mountinfo.HighestStack(table)
	all := len(table) + hidden
	most.Mounts += hidden
	point := checkkit.Sanitize(most.Point, 256)
	stack := fmt.Sprintf("; most, %s%d, on %s", atLeast, most.Mounts, point)
	if most.Mounts < stacked {
		stack = ""
	} else {
		l.results.Add(finding.Finding{
			Subject: finding.Subject{Kind: "directory", Name: most.Point}, Severity: finding.Warning, Reason: "MountsStacked",
			Message: fmt.Sprintf("%s%d mounts lie on %s, of %d of the host", atLeast, most.Mounts, point, all),
			Facts:   map[string]string{"mounts": fmt.Sprint(most.Mounts), "all": fmt.Sprint(all)},
		}, true)
	}
	limit, err := checkkit.ReadCount(l.host.Files, "/proc/sys/fs/mount-max")
	if errors.Is(err, fs.ErrNotExist) { // before Linux 4.9
		return nil
	}
	if err != nil {
		return err
	}
	l.near(subject, "MountsNearLimit", "the host has "+atLeast+"%s mounts, by fs.mount-max"+strings.ReplaceAll(stack, "%", "%%"),
		usage{uint64(all), limit}, true)
	if cut != nil { // their number is not known
		return cut
	}
	return nil
}

func (l *limits) aio(subject finding.Subject) error {
	used, err := checkkit.ReadCount(l.host.Files, "/proc/sys/fs/aio-nr")
	if err != nil {
		return err
	}
	limit, err := checkkit.ReadCount(l.host.Files, "/proc/sys/fs/aio-max-nr")
	if err != nil {
		return err
	}
	l.near(subject, "AIONearLimit", "programs have reserved %s requests of asynchronous I/O, by fs.aio-max-nr", usage{used, limit}, false)
	return nil
}

func (l *limits) memoryCgroups(subject finding.Subject) error {
	text, err := l.host.Files.Text("/proc/cgroups")
	if err != nil {
		return err
	}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) != 4 || fields[0] != "memory" {
			continue
		}
		used, err := strconv.ParseUint(fields[2], 10, 64)
		if err != nil {
			return fmt.Errorf("read proc/cgroups: %w", checkkit.InLine(line, err))
		}
		l.near(subject, "MemoryCgroupsNearLimit", "the kernel has %s memory cgroups, removed ones that are in use among them",
			usage{used, maxMemoryCgroups}, true)
	}
	return nil
}

// keys evaluates each user's quota. Its errors are those of the file; a user who is gone has no line.
func (l *limits) keys(subject finding.Subject) error {
	text, err := l.host.Files.Text("/proc/key-users")
	if err != nil {
		return err
	}
	for line := range strings.Lines(text) {
		user, keys, bytes, err := keyUser(line)
		if err != nil {
			return fmt.Errorf("read proc/key-users: %w", checkkit.InLine(line, err))
		}
		u, of := keys, "keys"
		if bytes.percent() > keys.percent() {
			u, of = bytes, "bytes of keys"
		}
		l.near(finding.Subject{Kind: "user", Name: user}, "KeysNearLimit",
			"user "+user+" has %s "+of+", by the sysctls in kernel.keys", u, false)
	}
	return nil
}

// keyUser reads "    0:     6 5/5 4/1000000 83/25000000".
func keyUser(line string) (user string, keys, bytes usage, err error) {
	user, rest, ok := strings.Cut(strings.TrimSpace(line), ":")
	fields := strings.Fields(rest)
	if !ok || len(fields) != 4 {
		return "", keys, bytes, errors.New("want a user and 4 counts")
	}
	if _, err := strconv.ParseUint(user, 10, 32); err != nil {
		return "", keys, bytes, err
	}
	if keys, err = share(fields[2]); err != nil {
		return "", keys, bytes, err
	}
	bytes, err = share(fields[3])
	return user, keys, bytes, err
}

// share reads "4/1000000".
func share(text string) (u usage, err error) {
	used, limit, _ := strings.Cut(text, "/")
	if u.used, err = strconv.ParseUint(used, 10, 64); err != nil {
		return u, err
	}
	u.limit, err = strconv.ParseUint(limit, 10, 64)
	return u, err
}
