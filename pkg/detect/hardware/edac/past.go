package edac

import (
	"encoding/json"
	"maps"
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
)

const (
	edacKey    = "edac/corrected"
	edacWindow = 24 // hours
)

// edacHistory is what is remembered of corrected errors. Times are since boot, and so is all of it: counts begin
// again there.
type edacHistory struct {
	Boot    string                 `json:"boot"`
	Modules map[string]*edacModule `json:"modules"`

	memory  detect.StateStore
	changed bool
}

type edacModule struct {
	Last  uint64         `json:"last"`  // the count at the last look
	Hours map[int]uint64 `json:"hours"` // errors by the hour since boot
	Grave bool           `json:"grave"` // was a warning: kept until well below the threshold
}

// load reads what an earlier agent remembered of this boot. What is malformed is forgotten.
func (p *edacHistory) load(boot string) {
	if p.Boot == boot && p.Modules != nil {
		return
	}
	p.Boot, p.Modules = boot, make(map[string]*edacModule)
	if p.memory == nil {
		return
	}
	data, ok := p.memory.Load(edacKey)
	var kept edacHistory
	if !ok || json.Unmarshal(data, &kept) != nil || kept.Boot != boot || len(kept.Modules) > maxEDACModules {
		return
	}
	for name, m := range kept.Modules {
		if m != nil && len(m.Hours) <= edacWindow+1 {
			p.Modules[name] = m
		}
	}
}

// add remembers the count of a module, and returns how many errors there were in the last 24 hours. The errors before
// the first look are known to be of these hours only when the machine was booted in them.
func (p *edacHistory) add(name string, count uint64, up time.Duration) uint64 {
	m, hour := p.Modules[name], int(up/time.Hour)
	if m == nil {
		m = &edacModule{Last: count}
		if hour < edacWindow {
			m.Last = 0
		}
		p.Modules[name], p.changed = m, true
	}
	if m.Hours == nil {
		m.Hours = make(map[int]uint64)
	}
	if count < m.Last {
		m.Last = 0 // counted anew
	}
	if count > m.Last {
		m.Hours[hour] += count - m.Last
		m.Last, p.changed = count, true
	}
	maps.DeleteFunc(m.Hours, func(h int, _ uint64) bool { return hour-h >= edacWindow })
	sum := uint64(0)
	for _, errors := range m.Hours {
		sum += errors
	}
	return sum
}

// grave reports whether errors are so many that it is a warning.
func (p *edacHistory) grave(name string, day, threshold uint64) bool {
	m := p.Modules[name]
	grave := threshold > 0 && (day >= threshold || m.Grave && float64(day) >= float64(threshold)*checkkit.ClearRatio)
	p.changed = p.changed || grave != m.Grave
	m.Grave = grave
	return grave
}

func (p *edacHistory) save() {
	if !p.changed || p.memory == nil {
		return
	}
	if data, err := json.Marshal(p); err == nil { // numbers and strings: it cannot fail
		p.memory.Save(edacKey, data)
		p.changed = false
	}
}
