package npd

import (
	"maps"

	"github.com/nodeagent/nodeagent/internal/host/tailfile"
	"github.com/nodeagent/nodeagent/pkg/detect"
)

// saved is the state that a log monitor keeps for the next run of the agent in the same boot.
type saved struct {
	Boot   string          `json:"boot"`
	Held   map[string]held `json:"held,omitempty"`
	Serial int             `json:"serial,omitempty"`
	// The read position: a number of the kernel's log, an offset in a file, or a cursor of the journal.
	Next   uint64                `json:"next,omitempty"`
	Place  tailfile.FilePosition `json:"place,omitzero"`
	Cursor string                `json:"cursor,omitempty"`
}

// state is the saved state of a log monitor or a journal.
func (d Deps) state(id string) detect.Saved[saved] {
	return detect.Saved[saved]{Store: d.Memory, Key: id}
}

// recall returns the state that an earlier run in this boot has saved.
func (d Deps) recall(id string) saved {
	boot := d.Host.Clock().Boot
	was, _ := d.state(id).Load(func(s saved) bool { return s.Boot == boot })
	return was
}

// restore takes the held problems of an earlier run. It drops conditions that are no longer in the file.
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

// snapshot returns the held problems, and whether they have changed since the last snapshot.
func (m *logMonitor) snapshot(boot string) (saved, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	moved := m.moved
	m.moved = false
	return saved{Boot: boot, Held: maps.Clone(m.held), Serial: m.serial}, moved
}
