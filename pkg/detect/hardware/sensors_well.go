package hardware

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/nodeagent/nodeagent/pkg/detect"
)

const sensorsKey = "sensors/well"

// sensorsWell remembers which sensors were once well, over restarts of the agent and of the machine.
type sensorsWell struct {
	memory  detect.StateStore
	ids     map[string]bool
	changed bool
}

// load reads what an earlier agent remembered. What is malformed is forgotten.
func (w *sensorsWell) load() {
	if w.ids != nil {
		return
	}
	w.ids = make(map[string]bool)
	if w.memory == nil {
		return
	}
	data, ok := w.memory.Load(sensorsKey)
	var kept []string
	if !ok || json.Unmarshal(data, &kept) != nil {
		return
	}
	for _, id := range kept[:min(len(kept), maxSensors)] {
		w.ids[id] = true
	}
}

func (w *sensorsWell) was(id string) bool { return w.ids[id] }

func (w *sensorsWell) see(id string) {
	if !w.ids[id] && len(w.ids) < maxSensors {
		w.ids[id], w.changed = true, true
	}
}

func (w *sensorsWell) save() {
	if !w.changed || w.memory == nil {
		return
	}
	if data, err := json.Marshal(slices.Sorted(maps.Keys(w.ids))); err == nil { // names: it cannot fail
		w.memory.Save(sensorsKey, data)
		w.changed = false
	}
}
