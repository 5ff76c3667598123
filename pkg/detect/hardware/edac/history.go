package edac

import (
	"maps"
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
)

const (
	edacKey    = "edac/corrected"
	edacWindow = 24 // hours
)

// edacHistory records the corrected errors in this boot: the counters begin again with the next one.
type edacHistory struct {
	Boot    string                 `json:"boot"`
	Modules map[string]*edacModule `json:"modules"`
}

type edacModule struct {
	Last   uint64         `json:"last"`  // the count in the last run
	Hours  map[int]uint64 `json:"hours"` // errors by the hour since boot
	Warned bool           `json:"grave"` // was a warning: kept until well below the threshold
}

// load reads the record of an earlier agent in this boot.
func (c *edacCheck) load(boot string) {
	if c.history.Boot == boot && c.history.Modules != nil {
		return
	}
	c.history, _ = c.saved.Load(func(h edacHistory) bool { return h.Boot == boot && len(h.Modules) <= maxEDACModules })
	maps.DeleteFunc(c.history.Modules, func(_ string, m *edacModule) bool {
		return m == nil || len(m.Hours) > edacWindow+1
	})
	if c.history.Boot = boot; c.history.Modules == nil {
		c.history.Modules = make(map[string]*edacModule)
	}
}

// add records the count of a module, and returns the number of errors in the last 24 hours. Errors before the first run
// are known to be of these hours only if the machine was booted in them.
func (c *edacCheck) add(name string, count uint64, up time.Duration) uint64 {
	m, hour := c.history.Modules[name], int(up/time.Hour)
	if m == nil {
		m = &edacModule{Last: count}
		if hour < edacWindow {
			m.Last = 0
		}
		c.history.Modules[name], c.changed = m, true
	}
	if m.Hours == nil {
		m.Hours = make(map[int]uint64)
	}
	if count < m.Last {
		m.Last = 0 // the counter was reset
	}
	if count > m.Last {
		m.Hours[hour] += count - m.Last
		m.Last, c.changed = count, true
	}
	maps.DeleteFunc(m.Hours, func(h int, _ uint64) bool { return hour-h >= edacWindow })
	sum := uint64(0)
	for _, errors := range m.Hours {
		sum += errors
	}
	return sum
}

// many reports whether the errors of a day are a warning.
func (c *edacCheck) many(name string, day uint64) bool {
	m := c.history.Modules[name]
	found, belowRaise := checkkit.Reaches(float64(day), float64(c.settings.CorrectedPerDay))
	many := found && (m.Warned || !belowRaise)
	c.changed = c.changed || many != m.Warned
	m.Warned = many
	return many
}
