package system

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// file-handles reads
//
//	/proc/sys/fs/file-nr     888	0	2466171      open files of the machine, (always 0), fs.file-max
//	/proc/PID/limits         Max open files            1048576              1048576              files
//	/proc/PID/fd             its size is the number of descriptors since Linux 6.2; before, its entries are counted
//
// the last two for kubelet and the runtime only. Root may exceed fs.file-max.
//
// https://docs.kernel.org/admin-guide/sysctl/fs.html#file-max-file-nr, proc_pid_limits(5), proc_pid_fd(5)

// FileHandles finds nodes, kubelets and runtimes that are close to their limit of open files.
func FileHandles(s UsageSettings) detect.Check {
	memory := usageState{}
	return detect.Check{
		ID: "file-handles", Domain: "kernel",
		Summary: "the node, kubelet or the runtime is close to its limit of open files",
		Advice: "Find the processes with the most open files: `for p in /proc/[0-9]*; do echo $(ls $p/fd | wc -l) $p " +
			"$(cat $p/comm); done | sort -n | tail`. Restart the one that leaks, or raise the limit that the message " +
			"names: sysctl fs.file-max, LimitNOFILE= in the unit.",
		Doc: detect.Doc{
			Reads: []string{"/proc/sys/fs/file-nr",
				"/proc/PID/limits and the size of /proc/PID/fd, of kubelet and the runtime"},
			Why: "Without a free file handle no program can open a file, a pipe or a connection: \"too many open " +
				"files in system\". A kubelet or runtime without a free descriptor accepts no request and starts no " +
				"container.",
			Faults: []detect.Fault{
				{Reason: "FileHandlesNearLimit", Severity: finding.Fatal, When: "open files are 80 % of fs.file-max " +
					"(warning), or 95 % (fatal: pods cannot open files)"},
				{Reason: "DescriptorsNearLimit", Severity: finding.Warning,
					When: "kubelet or the runtime uses 80 % of its own limit of descriptors; kubelet-health and " +
						"runtime-health report whether it still answers"},
			},
			FalseAlarms: "None known. Where fs.file-max is 2^63-1, as systemd sets it, there is no limit.",
		},
		Condition: detect.KernelProblem(),
		Every:     time.Minute,
		Wakes:     []detect.Wake{checkkit.KernelWake()},
		Policy:    finding.Policy{Clear: finding.Hold{Runs: 2}},
		Run: func(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
			var results checkkit.Results
			node, err := checkkit.Parse(h.Files, "/proc/sys/fs/file-nr", parseFileNr)
			if err != nil {
				return nil, err
			}
			results.Add(memory.near(s, nodeFileHandles(h, node), node, true))
			daemons, err := discover.Daemons(ctx, h)
			for _, d := range daemons {
				u, err := descriptors(h.Files, d.PID)
				f := descriptorFinding(d, u)
				if !errors.Is(err, syscall.ESRCH) && !results.Unread(f.Subject, err) { // otherwise it has exited
					results.Add(memory.near(s, f, u, false))
				}
			}
			findings, doubts := results.Done()
			return findings, cmp.Or(err, doubts)
		},
	}
}

// unlimited stands for no limit: no usage is a significant share of it.
const unlimited = 1 << 62

func nodeFileHandles(h *host.Host, u usage) finding.Finding {
	return finding.Finding{
		Subject: checkkit.NodeSubject(h), Reason: "FileHandlesNearLimit",
		Message: "the node has " + u.String() + " open files, by fs.file-max",
		Facts:   map[string]string{"open": fmt.Sprint(u.used), "limit": fmt.Sprint(u.limit)},
	}
}

// parseFileNr parses "888	0	2466171".
func parseFileNr(text string) (usage, error) {
	fields := strings.Fields(text)
	if len(fields) != 3 {
		return usage{}, fmt.Errorf("%q: want 3 numbers", checkkit.Sanitize(text, 80))
	}
	used, err := strconv.ParseUint(fields[0], 10, 64)
	if err != nil {
		return usage{}, err
	}
	limit, err := strconv.ParseUint(fields[2], 10, 64)
	return usage{used, limit}, err
}

func descriptorFinding(d discover.Daemon, u usage) finding.Finding {
	name := checkkit.Sanitize(d.Comm, 64)
	return finding.Finding{
		Subject: finding.Subject{Kind: "process", Name: name}, Reason: "DescriptorsNearLimit",
		Message: fmt.Sprintf("%s (PID %d) has %s descriptors open, by its own limit", name, d.PID, u),
		Facts: map[string]string{
			"pid": strconv.Itoa(d.PID), "role": d.Role, "open": fmt.Sprint(u.used),
			"limit": fmt.Sprint(u.limit),
		},
	}
}

// descriptors returns how many descriptors a process has and may have.
func descriptors(files host.Files, pid int) (usage, error) {
	dir := fmt.Sprintf("/proc/%d/", pid)
	limit, err := checkkit.Parse(files, dir+"limits", openFilesLimit)
	if err != nil {
		return usage{}, err
	}
	u := usage{limit: limit}
	stat, err := files.Stat(dir + "fd")
	if err != nil {
		return usage{}, err
	}
	if stat.Size > 0 && files.Root == "" { // the size means something else outside procfs
		u.used = stat.Size
		return u, nil
	}
	names, err := files.List(dir + "fd")
	u.used = uint64(len(names))
	return u, err
}

// openFilesLimit returns the soft limit from a line "Max open files 1024 524288 files".
func openFilesLimit(limits string) (uint64, error) {
	for line := range strings.Lines(limits) {
		rest, ok := strings.CutPrefix(line, "Max open files")
		if !ok {
			continue
		}
		soft := strings.Fields(rest)
		if len(soft) > 0 && soft[0] == "unlimited" {
			return unlimited, nil
		}
		if len(soft) < 2 {
			return 0, checkkit.InLine(line, errors.New("want two limits"))
		}
		return strconv.ParseUint(soft[0], 10, 64)
	}
	return 0, errors.New("no line begins with Max open files")
}
