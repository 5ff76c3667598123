package hardware

import (
	"maps"
	"slices"

	"github.com/nodeagent/nodeagent/pkg/detect"
)

const sensorsKey = "sensors/well"

// healthySensors records which sensors were healthy once, across restarts of the agent and of the machine.
type healthySensors struct {
	saved   detect.Saved[[]string]
	ids     map[string]bool
	changed bool
}

// load reads the record of an earlier agent.
func (w *healthySensors) load() {
	if w.ids != nil {
		return
	}
	w.ids = make(map[string]bool)
	kept, _ := w.saved.Load(func([]string) bool { return true })
	for _, id := range kept[:min(len(kept), maxSensors)] {
		w.ids[id] = true
	}
}

func (w *healthySensors) add(id string) {
	if !w.ids[id] && len(w.ids) < maxSensors {
		w.ids[id], w.changed = true, true
	}
}

func (w *healthySensors) save() {
	if w.changed {
		w.saved.Save(slices.Sorted(maps.Keys(w.ids)))
		w.changed = false
	}
}
