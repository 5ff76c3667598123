package detect

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// kubelet-restarts and runtime-restarts count the lives of one daemon. With the PID the start time is the identity of a
// process; it is by the kernel's own clock, so that neither a jump of the wall clock nor the time at which the agent looks
// counts. A reboot begins from zero. Of several restarts between two looks one is seen.

const (
	restartsWindow = 20 * time.Minute
	restartsRaise  = 5
	restartsKeep   = 3  // and what was raised is kept down to this
	maxRestarts    = 64 // remembered
)

// daemonMemory is what is known of a daemon's lives in this boot.
type daemonMemory struct {
	key    string // in memory
	memory Memory // may be nil

	loaded bool
	lives  daemonLives
}

// daemonLives is kept over restarts of the agent.
type daemonLives struct {
	Boot     string   `json:"boot"`
	PID      int      `json:"pid"`      // of the latest one; 0: none was seen
	Start    uint64   `json:"start"`    // of the latest one, in clock ticks since boot
	Restarts []uint64 `json:"restarts"` // starts of all but the first, in the same ticks

	// While it was away systemd has told of restarts, so that the next life is counted already.
	Unit  string `json:"unit,omitempty"`  // of the latest one
	Total uint32 `json:"total,omitempty"` // its NRestarts, when it was seen last
	Known bool   `json:"known,omitempty"` // whether Total is
	Told  bool   `json:"told,omitempty"`
}

// load recalls the lives of this boot.
func (m *daemonMemory) load(now finding.Stamp) {
	if m.loaded && m.lives.Boot == now.Boot {
		return
	}
	m.lives = daemonLives{Boot: now.Boot}
	if !m.loaded && m.memory != nil {
		var kept daemonLives
		if data, ok := m.memory.Load(m.key); ok && json.Unmarshal(data, &kept) == nil && kept.Boot == now.Boot && len(kept.Restarts) <= maxRestarts {
			m.lives, m.lives.Known = kept, false // nobody knows when systemd did what it did meanwhile
		}
	}
	m.loaded = true
}

func (m *daemonMemory) save() {
	if m.memory == nil {
		return
	}
	if data, err := json.Marshal(m.lives); err == nil { // numbers and strings: it cannot fail
		m.memory.Save(m.key, data)
	}
}

// saw takes the running daemon into account, and reports whether it is another one than before.
func (m *daemonMemory) saw(p host.Process) bool {
	if p.PID == m.lives.PID && p.StartTime == m.lives.Start {
		return false
	}
	if m.lives.PID != 0 && !m.lives.Told {
		m.lives.restarted(p.StartTime)
	}
	m.lives.PID, m.lives.Start, m.lives.Told, m.lives.Known = p.PID, p.StartTime, false, false
	m.save()
	return true
}

// restarted counts one restart.
func (l *daemonLives) restarted(start uint64) {
	l.Restarts = append(l.Restarts, start)
	l.Restarts = l.Restarts[max(0, len(l.Restarts)-maxRestarts):]
}

// recent counts the restarts within the window, and returns how long ago the first of them was.
func (l *daemonLives) recent(now finding.Stamp) (count int, first time.Duration) {
	for _, start := range l.Restarts {
		if age := (host.Process{StartTime: start}).Age(now.Up); age < restartsWindow {
			count++
			first = max(first, age)
		}
	}
	return count, first
}

// judge returns f, completed, where the daemon called name was restarted often.
func (l *daemonLives) judge(f finding.Finding, now finding.Stamp, name, advice string) []finding.Finding {
	count, first := l.recent(now)
	if count < restartsKeep {
		return nil
	}
	latest := (host.Process{StartTime: l.Restarts[len(l.Restarts)-1]}).Age(now.Up)
	f.Message = fmt.Sprintf("%s was restarted at least %d times in %s, the last time %s ago: see %s",
		name, count, first.Round(time.Second), latest.Round(time.Second), advice)
	f.Facts = map[string]string{"restarts": strconv.Itoa(count), "pid": strconv.Itoa(l.PID), "uptimeSeconds": strconv.Itoa(int(latest.Seconds()))}
	f.Marginal = count < restartsRaise
	return []finding.Finding{f}
}
