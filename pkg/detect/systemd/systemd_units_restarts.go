package systemd

import (
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/systemd"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// unitRestarts counts how often systemd started services again within unitFlappingWindow.
type unitRestarts struct {
	saved  detect.Saved[keptRestarts]
	loaded bool
	kept   keptRestarts
}

// keptRestarts is kept over restarts of the agent.
type keptRestarts struct {
	Boot  string                     `json:"boot"`
	Saved time.Duration              `json:"saved"` // since boot
	Units map[string]*restartsOfUnit `json:"units"` // services that run, and what was counted
}

type restartsOfUnit struct {
	Total  uint32        `json:"total"` // NRestarts, when it was seen last
	Events []restartSeen `json:"events,omitempty"`
}

// restartSeen is what was counted at one look.
type restartSeen struct {
	Up    time.Duration `json:"up"` // since boot
	Count uint32        `json:"count"`
}

const (
	unitRestartsKey = systemdUnitsID + "/restarts"
	maxKeptUnits    = 2000 // twice as many as the door tells of
)

// saw takes the running services into account. Of a service that is seen first nothing is known of the time before.
func (m *unitRestarts) saw(running []systemd.Unit, now finding.Timestamp) {
	m.load(now)
	changed := false
	there := make(map[string]bool, len(running))
	for _, u := range running {
		there[u.Name] = true
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
			count = 0 // somebody has started it
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
		if !there[name] && len(unit.Events) == 0 {
			delete(m.kept.Units, name)
		}
	}
	if changed {
		m.kept.Saved = now.SinceBoot
		m.saved.Save(m.kept)
	}
}

// within is how often the service was started again within the window.
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
	// When restarts happened while no agent ran for long is unknown: they do not count.
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

// restarting tells whether systemd waits to start it again, or does: auto-restart, auto-restart-queued.
func restarting(u systemd.Unit) bool { return strings.HasPrefix(u.Sub, "auto-restart") }
