package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	hostcri "github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/proc"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/system/tasks"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// shim-leaks reads the names of all processes (/proc/PID/stat) and, of those called containerd-shim or conmon, once
// in their life, /proc/PID/status (NSpid) and /proc/PID/cmdline:
//
//	/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id 0c3f… -address /run/containerd/containerd.sock
//	/usr/bin/conmon -b … -c 9d21… --exit-dir /var/run/crio/exits …
//
// and compares the IDs with those of the runtime over CRI, and IDs that are missing there with containerd's own
// containers and leases, which have a sandbox before CRI does.
//
// https://github.com/containerd/containerd/blob/main/core/runtime/v2/README.md (one shim for each pod, its -id is the
// sandbox's). A shim ends when its last container is removed. One that stays, because the runtime was down at that
// moment or a slow disk made the removal time out, keeps memory, a PID, mounts and often the whole container.
//
// Only runc's shim must have a child: a virtual machine may live inside its shim.

const (
	shimLeakAge  = 10 * time.Minute
	maxShimLeaks = 50 // reported individually

	shimLeakTimeout = 5 * time.Second // with the runtime
)

// ShimLeaks finds shims whose container the runtime no longer knows.
func ShimLeaks() detect.Check {
	s := &shimLeaks{known: map[tasks.TaskID]hostcri.Shim{}}
	return detect.Check{
		ID:      "shim-leaks",
		Domain:  "kubernetes",
		Summary: "a shim of the container runtime has outlived its pod",
		Advice: "Show the shim and the processes below it with `ps -o pid,lstart,args -p PID` and `pstree -p PID`, " +
			"and other leftovers of the pod with `nodeagent inspect`. If no pod of this node needs these processes, " +
			"run `ctr -n k8s.io task rm -f ID`; only if containerd does not know the task, run `kill PID`.",
		Doc: detect.Doc{
			Reads: []string{"/proc/PID/stat of all processes, /proc/PID/cmdline and status of shims",
				"CRI ListPodSandbox and ListContainers", "containerd's containers and leases"},
			Why: "Nothing ends the processes below such a shim: they take memory, ports and volumes that the " +
				"scheduler counts as free, and keep volumes of deleted pods mounted.",
			Faults: []detect.Fault{
				{Reason: "ShimWithoutContainer", Severity: finding.Warning,
					When: "a shim older than 10 minutes whose ID neither CRI nor containerd knows, seen twice 5 " +
						"minutes apart"},
				{Reason: "ShimOfDeadSandbox", Severity: finding.Warning, When: "a shim of runc older than 10 minutes " +
					"that has no process below it, while its sandbox is not ready, seen twice 5 minutes apart"},
			},
			FalseAlarms: "Only shims of the namespace k8s.io and conmon of CRI-O are checked. Those of other " +
				"namespaces (moby: Docker, also as the runtime of Kubernetes behind cri-dockerd; default: ctr, " +
				"nerdctl) and of podman belong to their engines: see `docker ps -a`, `nerdctl ps -a`. Shims of a " +
				"cluster that runs in a container (kind, k3d) are not checked.",
		},
		Every:  5 * time.Minute,
		Policy: finding.Policy{Raise: finding.Hold{Runs: 2, For: 5 * time.Minute}, BlindAfter: 30 * time.Minute},
		Run:    s.observe,
	}
}

type shimLeaks struct {
	known map[tasks.TaskID]hostcri.Shim
}

func (s *shimLeaks) observe(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	if h.Runtime.Sandboxes == nil || h.Runtime.Containers == nil {
		return nil, finding.NotApplicable("no container runtime is configured on this host")
	}
	table, err := h.ProcessTable(ctx, time.Minute)
	if err != nil {
		return nil, err
	}
	shims, err := s.shims(h, table)
	if err != nil || len(shims) == 0 {
		return nil, err
	}
	ask, cancel := context.WithTimeout(ctx, shimLeakTimeout)
	defer cancel()
	ids, err := knownToRuntime(ask, h, shims)
	if err != nil {
		return nil, err
	}
	var found []finding.Finding
	for _, p := range shims {
		children := childrenOf(table, p.stat.PID)
		state, known := ids[p.ID]
		switch {
		case !known:
			found = append(found, p.leaked(ctx, h, "ShimWithoutContainer", "the runtime does not know it", children...))
		case state == sandboxNotReady && p.Runc && len(children) == 0:
			found = append(found, p.leaked(ctx, h, "ShimOfDeadSandbox",
				"its sandbox is not ready and nothing runs below it"))
		}
		if len(found) == maxShimLeaks {
			break
		}
	}
	return found, nil
}

// runningShim is a shim of Kubernetes old enough to be checked.
type runningShim struct {
	hostcri.Shim

	stat proc.Stat
}

// shims returns the shims of Kubernetes, by age.
func (s *shimLeaks) shims(h *host.Host, table []proc.Stat) ([]runningShim, error) {
	var found []runningShim
	known := make(map[tasks.TaskID]hostcri.Shim)
	now := h.Clock().SinceBoot
	for _, p := range table {
		if !hostcri.IsShim(p.Comm) || !proc.Alive(p) {
			continue
		}
		if (host.Process{StartTime: p.StartTime}).Age(now) < shimLeakAge {
			continue
		}
		key := tasks.TaskID{Tid: p.PID, Start: p.StartTime}
		is, read := s.known[key]
		if !read {
			args, err := h.ProcArgs(p.PID)
			if errors.Is(err, fs.ErrNotExist) {
				continue // it ended meanwhile
			}
			if err != nil {
				return nil, fmt.Errorf("shim: %w", err)
			}
			if is = hostcri.ParseShim(args); is.ID != "" && discover.Nested(h, p.PID) {
				is = hostcri.Shim{}
			}
		}
		known[key] = is
		if is.ID != "" {
			found = append(found, runningShim{is, p})
		}
	}
	s.known = known
	slices.SortFunc(found, func(a, b runningShim) int { return strings.Compare(a.ID, b.ID) })
	return found, nil
}

func childrenOf(table []proc.Stat, pid int) []int {
	var children []int
	for _, p := range table {
		if p.PPID == pid && proc.Alive(p) {
			children = append(children, p.PID)
		}
	}
	return children
}

// leaked returns the finding about a shim that should not run, and the processes below it.
func (p runningShim) leaked(ctx context.Context, h *host.Host, reason, why string, children ...int) finding.Finding {
	f := finding.Finding{
		Subject: finding.Subject{Kind: "shim", Name: p.ID}, Severity: finding.Warning, Reason: reason,
		Message: fmt.Sprintf("the shim of %.12s (PID %d) has outlived its pod: %s", p.ID, p.stat.PID, why),
		Facts:   map[string]string{"pid": strconv.Itoa(p.stat.PID), "processesBelow": strconv.Itoa(len(children))},
	}
	if len(children) == 0 {
		return f
	}
	f.Message += fmt.Sprintf("; processes that still run below it: %d", len(children))
	if uid, ok := checkkit.PodOfProcess(h, children[0]); ok {
		names := checkkit.PodNames(ctx, h, []string{uid})
		f.Facts["pods"] = finding.JoinFirst(names, 1)
		f.Message += ", of pod " + finding.JoinFirst(names, 1)
	}
	return f
}
