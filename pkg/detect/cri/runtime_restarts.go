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

// runtime-restarts finds the container runtime by the peer credentials of its socket and reads its /proc/PID/stat, as
// kubelet-restarts does:
//
//	812 (containerd) S 1 812 812 0 -1 1077936384 … 22nd field: 331 …
//
// https://docs.kernel.org/filesystems/proc.html (stat). A runtime that ends before it listens has no process to find:
// only while none listens, systemd's NRestarts of the runtime's service counts its restarts. The name of the service is
// that of its last cgroup, or a usual name of a runtime.

// RuntimeRestarts finds a container runtime that restarts again and again. The store may be nil.
func RuntimeRestarts(store detect.StateStore) detect.Check {
	r := &runtimeRestarts{state: checkkit.DaemonState{Key: "runtime-restarts/starts", Memory: store}}
	return detect.Check{
		ID:      "runtime-restarts",
		Domain:  "kubernetes",
		Summary: "the container runtime is restarted again and again",
		Advice: "Find out why it exits with `journalctl -u containerd -n 100` (or crio, docker). Common causes are " +
			"a broken configuration or plugin, a full or damaged image store, and running out of memory (`journalctl " +
			"-k -g oom`). Running containers survive its restarts.",
		Doc: checkkit.RestartsDoc("RuntimeRestartsOften", "While the runtime starts, no container is started or "+
			"ended, and kubelet's calls fail. Between two exits a single observation finds it healthy.",
			"the runtime's socket, for the process behind it", "/proc/PID/stat and cgroup of it",
			"NRestarts of its service over D-Bus, while it does not listen"),
		Uses:  []host.Setting{host.CRISocket},
		Every: 20 * time.Second,
		Run:   r.observe,
	}
}

// runtimeRestarts counts the starts of the runtime.
type runtimeRestarts struct {
	state checkkit.DaemonState
	comm  string // of the latest one
}

func (r *runtimeRestarts) observe(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	if h.Runtime.Process == nil {
		return nil, finding.NotApplicable("no container runtime is configured on this host")
	}
	now := h.Clock()
	r.state.Load(now)
	process, err := discover.RuntimeProcess(ctx, h)
	switch {
	case err == nil:
		if r.state.Saw(process) {
			r.state.Lives.Unit = unitOfProcess(h, process.PID)
			r.state.Save()
		}
		r.comm = process.Comm
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("container runtime: %w", err)
	case r.state.Lives.PID == 0 && h.NodeName == "":
		return nil, finding.NotApplicable("no container runtime serves %s on this host", h.Paths.CRISocket)
	default:
		if err := r.countBySystemd(ctx, h, now); err != nil {
			return nil, err
		}
	}
	f := finding.Finding{
		Subject: finding.Subject{Kind: "container-runtime", Name: h.Paths.CRISocket}, Reason: "RuntimeRestartsOften",
	}
	name, unit := "the container runtime", "containerd"
	if r.comm != "" {
		name += " " + checkkit.Sanitize(r.comm, 32)
	}
	if known := r.state.Lives.Unit; known != "" {
		unit = checkkit.Sanitize(strings.TrimSuffix(known, ".service"), 100)
	}
	return r.state.Lives.Judge(f, now, name, "why it ends in `journalctl -u "+unit+"`"), nil
}

// countBySystemd counts restarts by systemd while no runtime listens.
func (r *runtimeRestarts) countBySystemd(ctx context.Context, h *host.Host, now finding.Timestamp) error {
	if h.Systemd.Units == nil {
		return nil
	}
	units, err := h.Systemd.Units(ctx)
	if err != nil {
		return hosterr.Ignore(err, hosterr.ErrNotConfigured)
	}
	lives := &r.state.Lives
	i := slices.IndexFunc(units.Running, func(u systemd.Unit) bool {
		return u.Name == lives.Unit || lives.Unit == "" && runtimeService(u.Name)
	})
	if i < 0 {
		lives.Known = false // it has failed, or was stopped: systemd does not start it again
		return nil
	}
	u := units.Running[i]
	if lives.Known && u.Restarts > lives.Total {
		for range min(u.Restarts-lives.Total, checkkit.MaxRestarts) {
			lives.Restarted(uint64(now.SinceBoot / (10 * time.Millisecond))) //nolint:gosec // positive
		}
		lives.Reported = true
	}
	if !lives.Known || u.Restarts != lives.Total || u.Name != lives.Unit {
		lives.Known, lives.Total, lives.Unit = true, u.Restarts, u.Name
		r.state.Save()
	}
	return nil
}

// runtimeService reports whether a service has the name of a runtime.
func runtimeService(name string) bool {
	return slices.Contains([]string{"containerd.service", "crio.service", "cri-o.service", "cri-docker.service",
		"docker.service"}, name)
}

// unitOfProcess returns the service to which a process belongs by its cgroup; empty if there is none.
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
