package systemd

import (
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/systemd"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// unitRestarts counts the restarts of services within unitFlappingWindow.
type unitRestarts struct {
	saved  detect.Saved[keptRestarts]
	loaded bool
	kept   keptRestarts
}

// keptRestarts is kept across restarts of the agent.
type keptRestarts struct {
	Boot  string                     `json:"boot"`
	Saved time.Duration              `json:"saved"` // since boot
	Units map[string]*restartsOfUnit `json:"units"` // running services, and those with restarts
}

type restartsOfUnit struct {
	Total  uint32        `json:"total"` // NRestarts in the last run
	Events []restartSeen `json:"events,omitempty"`
}

// restartSeen holds the counts of one run.
type restartSeen struct {
	Up    time.Duration `json:"up"` // since boot
	Count uint32        `json:"count"`
}

const (
	unitRestartsKey = "systemd-units/restarts"
	maxKeptUnits    = 2000 // twice as many as the client returns
)

// observe counts the restarts of the running services since the last run. For a new service no restart is known.
func (m *unitRestarts) observe(running []systemd.Unit, now finding.Timestamp) {
	m.load(now)
	changed := false
	exists := make(map[string]bool, len(running))
	for _, u := range running {
		exists[u.Name] = true
		old := m.kept.Units[u.Name]
		if old == nil {
			if len(m.kept.Units) < maxKeptUnits {
				m.kept.Units[u.Name] = &restartsOfUnit{Total: u.Restarts}
				changed = true
			}
			continue
		}
		count := u.Restarts - old.Total
		if u.Restarts < old.Total {
			count = 0 // it was started by hand
		}
		if u.Restarts == 0 && restarting(u) {
			count = 1 // before systemd 235
		}
		if count > 0 {
			old.Events = append(old.Events, restartSeen{now.SinceBoot, count})
		}
		changed = changed || count > 0 || old.Total != u.Restarts
		old.Total = u.Restarts
	}
	for name, unit := range m.kept.Units {
		for len(unit.Events) > 0 && now.SinceBoot-unit.Events[0].Up >= unitFlappingWindow {
			unit.Events = unit.Events[1:]
		}
		if !exists[name] && len(unit.Events) == 0 {
			delete(m.kept.Units, name)
		}
	}
	if changed {
		m.kept.Saved = now.SinceBoot
		m.saved.Save(m.kept)
	}
}

// within returns the number of restarts of a service within the window.
func (m *unitRestarts) within(name string) (count uint32) {
	if unit := m.kept.Units[name]; unit != nil {
		for _, event := range unit.Events {
			count += event.Count
		}
	}
	return count
}

func (m *unitRestarts) load(now finding.Timestamp) {
	if m.loaded && m.kept.Boot == now.Boot {
		return
	}
	m.kept = keptRestarts{Boot: now.Boot, Units: map[string]*restartsOfUnit{}}
	// Restarts while no agent ran for long do not count: their times are unknown.
	kept, ok := m.saved.Load(func(kept keptRestarts) bool {
		return kept.Boot == now.Boot && len(kept.Units) <= maxKeptUnits && now.SinceBoot-kept.Saved < unitFlappingWindow
	})
	if ok && !m.loaded {
		for name, unit := range kept.Units {
			if unit != nil {
				m.kept.Units[name] = unit
			}
		}
	}
	m.loaded = true
}

// restarting reports whether systemd is about to restart it: auto-restart, auto-restart-queued.
func restarting(u systemd.Unit) bool { return strings.HasPrefix(u.Sub, "auto-restart") }
