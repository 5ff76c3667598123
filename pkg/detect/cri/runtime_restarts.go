package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/systemd"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// runtime-restarts finds the container runtime by the peer credentials of its socket and reads, as kubelet-restarts
// does, /proc/PID/stat of it:
//
//	812 (containerd) S 1 812 812 0 -1 1077936384 … 22nd field: 331 …
//
// https://docs.kernel.org/filesystems/proc.html (stat). A runtime that ends before it listens has no process to be
// found: while it is away, and only then, systemd is asked how often it has started the runtime's service again
// (NRestarts). The name of the service is that of its last cgroup, or one of those that runtimes have.
//
// Five restarts in 20 minutes are what node-problem-detector and AKS call frequent for containerd and docker; what was
// raised is kept down to three.
//
// Known false alarms: none known; who restarts it by hand five times in 20 minutes is told so.

const (
	runtimeRestartsID  = "runtime-restarts"
	runtimeRestartsKey = runtimeRestartsID + "/starts"
)

// RuntimeRestarts finds a container runtime that is restarted again and again. Memory may be nil.
func RuntimeRestarts(memory detect.StateStore) detect.Check {
	r := &runtimeRestarts{memory: checkkit.DaemonState{Key: runtimeRestartsKey, Memory: memory}}
	return detect.Check{
		ID:      runtimeRestartsID,
		Domain:  "kubernetes",
		Summary: "the container runtime is restarted again and again",
		Advice: "`journalctl -u containerd -n 100` (or crio, docker) shows why it ended: common are a broken " +
			"configuration or plugin, a full or damaged image store, and running out of memory (`journalctl -k -g " +
			"oom`). Running containers survive its restarts.",
		Doc: detect.Doc{
			Reads: []string{"the runtime's socket, for the process behind it", "/proc/PID/stat and cgroup of it",
				"NRestarts of its service over D-Bus, while it is away"},
			Why: "While the runtime starts nothing else is started or ended, and calls of kubelet fail. Between two " +
				"ends it looks healthy to who asks for a moment only.",
			Faults: []detect.Fault{
				{Reason: "RuntimeRestartsOften", Severity: finding.Warning,
					When: "5 restarts in 20 minutes, as node-problem-detector counts; gone below 3"},
			},
			FalseAlarms: "Reboots do not count. Restarts while the agent is away count as one.",
		},
		Every:    20 * time.Second,
		Deadline: 10 * time.Second,
		Run:      r.observe,
	}
}

// runtimeRestarts looks at the runtime's lives.
type runtimeRestarts struct {
	memory checkkit.DaemonState
	comm   string // of the latest one
}

func (r *runtimeRestarts) observe(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	if h.Runtime.Process == nil {
		return nil, finding.NotApplicable("no container runtime is configured on this host")
	}
	now := h.Clock()
	r.memory.Load(now)
	process, err := discover.RuntimeProcess(ctx, h)
	switch {
	case err == nil:
		if r.memory.Saw(process) {
			r.memory.Lives.Unit = unitOfProcess(h, process.PID)
			r.memory.Save()
		}
		r.comm = process.Comm
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("container runtime: %w", err)
	case r.memory.Lives.PID == 0 && h.NodeName == "":
		return nil, finding.NotApplicable("no container runtime serves %s on this host", h.Paths.CRISocket)
	default:
		if err := r.away(ctx, h, now); err != nil {
			return nil, err
		}
	}
	f := finding.Finding{
		Check: runtimeRestartsID, Subject: finding.Subject{Kind: "container-runtime", Name: h.Paths.CRISocket},
		Severity: finding.Warning,
		Reason:   "RuntimeRestartsOften",
	}
	name, unit := "the container runtime", "containerd"
	if r.comm != "" {
		name += " " + checkkit.Sanitize(r.comm, 32)
	}
	if known := r.memory.Lives.Unit; known != "" {
		unit = checkkit.Sanitize(strings.TrimSuffix(known, ".service"), 100)
	}
	return r.memory.Lives.Judge(f, now, name, "why it ends in `journalctl -u "+unit+"`"), nil
}

// away counts, while no runtime listens, what systemd does about that.
func (r *runtimeRestarts) away(ctx context.Context, h *host.Host, now finding.Timestamp) error {
	if h.Systemd.Units == nil {
		return nil
	}
	units, err := h.Systemd.Units(ctx)
	if errors.Is(err, hosterr.ErrNotConfigured) {
		return nil
	}
	if err != nil {
		return err
	}
	lives := &r.memory.Lives
	i := slices.IndexFunc(units.Running, func(u systemd.Unit) bool {
		return u.Name == lives.Unit || lives.Unit == "" && runtimeService(u.Name)
	})
	if i < 0 {
		lives.Known = false // it has failed, or was stopped: nobody starts it again
		return nil
	}
	u := units.Running[i]
	if lives.Known && u.Restarts > lives.Total {
		for range min(u.Restarts-lives.Total, checkkit.MaxRestarts) {
			lives.Restarted(uint64(now.SinceBoot / (10 * time.Millisecond))) //nolint:gosec // positive
		}
		lives.Told = true
	}
	if !lives.Known || u.Restarts != lives.Total || u.Name != lives.Unit {
		lives.Known, lives.Total, lives.Unit = true, u.Restarts, u.Name
		r.memory.Save()
	}
	return nil
}

// runtimeService tells whether a service is named as runtimes are.
func runtimeService(name string) bool {
	return slices.Contains([]string{"containerd.service", "crio.service", "cri-o.service", "cri-docker.service",
		"docker.service"}, name)
}

// unitOfProcess returns the service that a process belongs to by its cgroup; empty where there is none.
func unitOfProcess(h *host.Host, pid int) string {
	cgroups, err := h.ProcCgroups(pid)
	if err != nil {
		return ""
	}
	for _, controller := range []string{"", "name=systemd"} {
		if name := path.Base(cgroups[controller]); strings.HasSuffix(name, ".service") {
			return name
		}
	}
	return ""
}
