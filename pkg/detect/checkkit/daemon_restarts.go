package checkkit

import (
	"fmt"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// kubelet-restarts and runtime-restarts count the processes of one daemon. PID and start time identify a process; the
// start time is by the kernel's clock, so neither a jump of the wall clock nor the time of a run matters. A reboot
// resets the count. Several restarts between two runs count as one.
//
// node-problem-detector and AKS call five restarts in 20 minutes frequent, and so does GKE for kubelet: an upgrade or a
// change of configuration causes one or two.

const (
	restartsWindow = 20 * time.Minute
	restartsRaise  = 5
	restartsKeep   = 3  // a raised finding is kept down to this count
	MaxRestarts    = 64 // remembered
)

// RestartsDoc documents such a check.
func RestartsDoc(reason, why string, reads ...string) detect.Doc {
	return detect.Doc{
		Reads: reads, Why: why,
		Faults: []detect.Fault{{Reason: reason, Severity: finding.Warning,
			When: "5 restarts in 20 minutes, as node-problem-detector counts; cleared below 3"}},
		FalseAlarms: "Reboots are not counted. Restarts while the agent does not run count as one. Restarts by hand " +
			"are counted.",
	}
}

// DaemonState has the processes of a daemon in this boot.
type DaemonState struct {
	Key    string            // in memory
	Memory detect.StateStore // may be nil

	loaded bool
	Lives  daemonLives
}

// daemonLives is kept across restarts of the agent.
type daemonLives struct {
	Boot     string   `json:"boot"`
	PID      int      `json:"pid"`      // of the latest one; 0: none
	Start    uint64   `json:"start"`    // of the latest one, in clock ticks since boot
	Restarts []uint64 `json:"restarts"` // starts of all but the first, in the same ticks

	// Told: systemd reported restarts while the daemon did not run, so the next process is already counted.
	Unit     string `json:"unit,omitempty"`  // of the latest one
	Total    uint32 `json:"total,omitempty"` // its NRestarts in the last run
	Known    bool   `json:"known,omitempty"` // whether Total is known
	Reported bool   `json:"told,omitempty"`
}

// Load restores the processes of this boot.
func (m *DaemonState) Load(now finding.Timestamp) {
	if m.loaded && m.Lives.Boot == now.Boot {
		return
	}
	m.Lives = daemonLives{Boot: now.Boot}
	usable := func(l daemonLives) bool { return l.Boot == now.Boot && len(l.Restarts) <= MaxRestarts }
	if kept, ok := m.saved().Load(usable); ok && !m.loaded {
		m.Lives, m.Lives.Known = kept, false // it is unknown when systemd restarted the daemon meanwhile
	}
	m.loaded = true
}

// Save keeps the state for the next run of the agent in this boot.
func (m *DaemonState) Save() { m.saved().Save(m.Lives) }

func (m *DaemonState) saved() detect.Saved[daemonLives] {
	return detect.Saved[daemonLives]{Store: m.Memory, Key: m.Key}
}

// Saw records the running daemon, and reports whether it is a new process.
func (m *DaemonState) Saw(p host.Process) bool {
	if p.PID == m.Lives.PID && p.StartTime == m.Lives.Start {
		return false
	}
	if m.Lives.PID != 0 && !m.Lives.Reported {
		m.Lives.Restarted(p.StartTime)
	}
	m.Lives.PID, m.Lives.Start, m.Lives.Reported, m.Lives.Known = p.PID, p.StartTime, false, false
	m.Save()
	return true
}

// Restarted counts one restart.
func (l *daemonLives) Restarted(start uint64) {
	l.Restarts = append(l.Restarts, start)
	l.Restarts = l.Restarts[max(0, len(l.Restarts)-MaxRestarts):]
}

// recent counts the restarts within the window, and returns how long ago the first of them was.
func (l *daemonLives) recent(now finding.Timestamp) (count int, first time.Duration) {
	for _, start := range l.Restarts {
		if age := (host.Process{StartTime: start}).Age(now.SinceBoot); age < restartsWindow {
			count++
			first = max(first, age)
		}
	}
	return count, first
}

// Judge returns the completed finding f if the daemon called name was restarted often.
func (l *daemonLives) Judge(f finding.Finding, now finding.Timestamp, name, advice string) []finding.Finding {
	count, first := l.recent(now)
	if count < restartsKeep {
		return nil
	}
	latest := (host.Process{StartTime: l.Restarts[len(l.Restarts)-1]}).Age(now.SinceBoot)
	f.Message = fmt.Sprintf("%s was restarted at least %d times in %s, the last time %s ago: see %s",
		name, count, first.Round(time.Second), latest.Round(time.Second), advice)
	f.Facts = map[string]string{"restarts": strconv.Itoa(count), "pid": strconv.Itoa(l.PID),
		"uptimeSeconds": strconv.Itoa(int(latest.Seconds()))}
	f.Severity, f.BelowRaise = finding.Warning, count < restartsRaise
	return []finding.Finding{f}
}
