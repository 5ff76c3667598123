package network

import (
	"encoding/json"

	"github.com/nodeagent/nodeagent/pkg/detect"
)

// linkHistory is which links once worked, by name. It survives a restart of the agent, and of the node: a cable that
// is pulled while the node restarts is missed too.
type linkHistory struct {
	Links map[string]bool `json:"links"`

	key     string
	memory  detect.StateStore
	changed bool
}

// loadLinkPast reads what an earlier agent remembered. What is malformed is forgotten.
func loadLinkPast(memory detect.StateStore, key string) linkHistory {
	p := linkHistory{key: key, memory: memory}
	if memory != nil {
		if data, ok := memory.Load(key); ok && json.Unmarshal(data, &p) != nil {
			p.Links = nil
		}
	}
	if p.Links == nil || len(p.Links) > maxCards {
		p.Links = map[string]bool{}
	}
	return p
}

func (p *linkHistory) saw(name string) {
	if !p.Links[name] && len(p.Links) < maxCards {
		p.Links[name], p.changed = true, true
	}
}

func (p *linkHistory) save() {
	if !p.changed || p.memory == nil {
		return
	}
	if data, err := json.Marshal(p); err == nil { // a map of strings: it cannot fail
		p.memory.Save(p.key, data)
		p.changed = false
	}
}
