package npd

import (
	"encoding/json"
	"fmt"

	"github.com/nodeagent/nodeagent/internal/host/tailfile"
	"github.com/nodeagent/nodeagent/pkg/detect"
)

// saved is what a log monitor leaves for the next run of the agent in the same boot.
type saved struct {
	Boot   string          `json:"boot"`
	Held   map[string]held `json:"held,omitempty"`
	Serial int             `json:"serial,omitempty"`
	// Where it has read to: a number of the kernel's log, a place in a file, or a cursor of the journal.
	Next   uint64                `json:"next,omitempty"`
	Place  tailfile.FilePosition `json:"place,omitzero"`
	Cursor string                `json:"cursor,omitempty"`
}

// keep saves s if there is a memory.
func keep(memory detect.StateStore, id string, s saved) {
	if memory == nil {
		return
	}
	if data, err := json.Marshal(s); err == nil { // maps of strings and numbers can always be written
		memory.Save(id, data)
	}
}

// recall returns what an earlier run in this boot has left. What was said in another boot is over.
func recall(memory detect.StateStore, id, boot string) (saved, error) {
	var s saved
	if memory == nil {
		return s, nil
	}
	data, ok := memory.Load(id)
	if !ok {
		return s, nil
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return saved{}, fmt.Errorf("memory of %s: %w", id, err)
	}
	if s.Boot != boot {
		return saved{}, nil
	}
	return s, nil
}

// restore takes over what an earlier run has held. Conditions that the file has no more are dropped.
func (m *logMonitor) restore(s saved) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.serial = s.Serial
	for condition, h := range s.Held {
		for _, r := range m.rules {
			if r.Condition == condition && r.Reason == h.Reason {
				h.Expiry = r.expiry
				m.held[condition] = h
			}
		}
	}
}

// snapshot returns what is held, and whether that has changed since the last snapshot.
func (m *logMonitor) snapshot(boot string) (saved, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	moved := m.moved
	m.moved = false
	s := saved{Boot: boot, Held: map[string]held{}, Serial: m.serial}
	for condition, h := range m.held {
		s.Held[condition] = h
	}
	return s, moved
}
