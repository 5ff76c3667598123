package detect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// kubelet-restarts reads /proc/PID/stat of kubelet's process, whose start time (field 22, clock ticks since boot) is with the
// PID its identity:
//
//	900 (kubelet) S 1 900 900 0 -1 1077936384 … 22nd field: 331 …
//
// https://docs.kernel.org/filesystems/proc.html (stat).
//
// Five restarts in 20 minutes are what node-problem-detector, AKS and GKE call frequent: an upgrade or a change of
// configuration makes one or two. The start time is by the kernel's own clock, so that neither a jump of the wall clock nor
// the time at which the agent looks counts. A reboot begins from zero. Of several restarts between two looks one is seen.
//
// Known false alarms: none known; who restarts kubelet by hand five times in 20 minutes is told so.

const (
	restartsID     = "kubelet-restarts"
	restartsKey    = restartsID + "/starts"
	restartsWindow = 20 * time.Minute
	restartsRaise  = 5
	restartsKeep   = 3  // and what was raised is kept down to this
	maxRestarts    = 64 // remembered
)

// KubeletRestarts finds a kubelet that is restarted again and again. Memory may be nil.
func KubeletRestarts(memory Memory) Check {
	m := &restartMemory{memory: memory}
	return Check{
		ID:      restartsID,
		Domain:  "kubernetes",
		Summary: "kubelet is restarted again and again",
		Advice: "`journalctl -u kubelet -g 'E[0-9]{4}|panic|fatal' -n 100` shows why it ended; `systemctl status kubelet` who ended it. Common are a wrong flag or " +
			"configuration, an expired certificate, a runtime that is away, and running out of memory (`journalctl -k -g oom`).",
		Doc: Doc{
			Reads: []string{"/proc/PID/stat of kubelet"},
			Why: "While kubelet starts nothing else on the node is started or ended, and each start asks the apiserver for everything anew. Between two ends it " +
				"looks healthy to who asks for a moment only.",
			Faults: []Fault{
				{"KubeletRestartsOften", finding.Warning, "5 restarts in 20 minutes, as node-problem-detector counts; gone below 3"},
			},
			FalseAlarms: "Reboots do not count. Restarts while the agent is away count as one.",
		},
		Every:    20 * time.Second,
		Deadline: 5 * time.Second,
		Run:      m.look,
	}
}

// restartMemory is what is known of kubelet's lives in this boot.
type restartMemory struct {
	memory Memory

	mu     sync.Mutex // guards all below; held during a look
	loaded bool
	lives  kubeletLives
}

// kubeletLives is kept over restarts of the agent.
type kubeletLives struct {
	Boot     string   `json:"boot"`
	PID      int      `json:"pid"`   // of the latest one
	Start    uint64   `json:"start"` // of the latest one, in clock ticks since boot
	Restarts []uint64 `json:"restarts"`
}

func (m *restartMemory) look(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.Kubelet.Process == nil {
		return nil, finding.NotApplicable("no kubelet is configured on this host")
	}
	now := h.Clock()
	m.load(now)
	process, err := h.Kubelet.Process()
	switch {
	case errors.Is(err, fs.ErrNotExist) && m.lives.PID == 0:
		return nil, finding.NotApplicable("no process called kubelet has run since boot: it may be part of another program")
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("kubelet: %w", err)
	case err == nil:
		m.saw(process)
	}
	return m.lives.judge(now), nil
}

// load recalls the lives of this boot.
func (m *restartMemory) load(now finding.Stamp) {
	if m.loaded && m.lives.Boot == now.Boot {
		return
	}
	m.lives = kubeletLives{Boot: now.Boot}
	if !m.loaded && m.memory != nil {
		var kept kubeletLives
		if data, ok := m.memory.Load(restartsKey); ok && json.Unmarshal(data, &kept) == nil && kept.Boot == now.Boot && len(kept.Restarts) <= maxRestarts {
			m.lives = kept
		}
	}
	m.loaded = true
}

// saw takes the running kubelet into account.
func (m *restartMemory) saw(p host.Process) {
	if p.PID == m.lives.PID && p.StartTime == m.lives.Start {
		return
	}
	if m.lives.PID != 0 {
		m.lives.Restarts = append(m.lives.Restarts, p.StartTime)
		m.lives.Restarts = m.lives.Restarts[max(0, len(m.lives.Restarts)-maxRestarts):]
	}
	m.lives.PID, m.lives.Start = p.PID, p.StartTime
	if m.memory == nil {
		return
	}
	if data, err := json.Marshal(m.lives); err == nil { // numbers and a string: it cannot fail
		m.memory.Save(restartsKey, data)
	}
}

func (l kubeletLives) judge(now finding.Stamp) []finding.Finding {
	count, oldest := 0, time.Duration(0)
	for _, start := range l.Restarts {
		if age := (host.Process{StartTime: start}).Age(now.Up); age < restartsWindow {
			count++
			oldest = max(oldest, age)
		}
	}
	if count < restartsKeep {
		return nil
	}
	latest := (host.Process{StartTime: l.Start}).Age(now.Up)
	return []finding.Finding{{
		Check: restartsID, Subject: kubeletSubject(), Severity: finding.Warning, Reason: "KubeletRestartsOften",
		Message: fmt.Sprintf("kubelet was restarted at least %d times in %s, the last time %s ago: see why it ends in `journalctl -u kubelet`",
			count, oldest.Round(time.Second), latest.Round(time.Second)),
		Facts:    map[string]string{"restarts": strconv.Itoa(count), "pid": strconv.Itoa(l.PID), "uptimeSeconds": strconv.Itoa(int(latest.Seconds()))},
		Marginal: count < restartsRaise,
	}}
}
