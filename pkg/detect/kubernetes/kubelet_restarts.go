package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// kubelet-restarts reads /proc/PID/stat of kubelet's process, whose start time (field 22, clock ticks since boot) and
// PID are its identity:
//
//	900 (kubelet) S 1 900 900 0 -1 1077936384 … 22nd field: 331 …
//
// https://docs.kernel.org/filesystems/proc.html (stat). checkkit.DaemonState counts its restarts.

const restartsKey = "kubelet-restarts/starts"

// KubeletRestarts finds a kubelet that restarts again and again. The store may be nil.
func KubeletRestarts(store detect.StateStore) detect.Check {
	m := &kubeletRestarts{lives: checkkit.DaemonState{Key: restartsKey, Memory: store}}
	return detect.Check{
		ID:      "kubelet-restarts",
		Domain:  "kubernetes",
		Summary: "kubelet is restarted again and again",
		Advice: "`journalctl -u kubelet -g 'E[0-9]{4}|panic|fatal' -n 100` shows why it exits, `systemctl status " +
			"kubelet` how. Common causes are a wrong flag or configuration, an expired certificate, a runtime that " +
			"is down, and running out of memory (`journalctl -k -g oom`).",
		Doc: checkkit.RestartsDoc("KubeletRestartsOften", "While kubelet starts, no pod on the node is started or "+
			"ended, and each start lists everything from the apiserver again. Between two exits a single observation "+
			"finds it healthy.", "/proc/PID/stat of kubelet"),
		Every:    20 * time.Second,
		Deadline: 5 * time.Second,
		Run:      m.observe,
	}
}

// kubeletRestarts counts the starts of kubelet.
type kubeletRestarts struct {
	lives checkkit.DaemonState
}

func (m *kubeletRestarts) observe(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	if h.Kubelet.Process == nil {
		return nil, finding.NotApplicable("no kubelet is configured on this host")
	}
	now := h.Clock()
	m.lives.Load(now)
	process, err := h.Kubelet.Process()
	switch {
	case errors.Is(err, fs.ErrNotExist) && m.lives.Lives.PID == 0:
		return nil, finding.NotApplicable(
			"no process called kubelet has run since boot: it may be part of another program")
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("kubelet: %w", err)
	case err == nil:
		m.lives.Saw(process)
	}
	f := finding.Finding{Subject: checkkit.KubeletSubject(), Reason: "KubeletRestartsOften"}
	return m.lives.Lives.Judge(f, now, "kubelet", "why it ends in `journalctl -u kubelet`"), nil
}
