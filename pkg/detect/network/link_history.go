package network

import "github.com/nodeagent/nodeagent/pkg/detect"

// linkHistory records by name which links once worked. It survives a restart of the agent and of the node, so that the
// check also reports a cable that is pulled while the node restarts.
type linkHistory struct {
	Links map[string]bool `json:"links"`

	saved   detect.Saved[linkHistory]
	changed bool
}

func loadLinkHistory(store detect.StateStore, key string) linkHistory {
	saved := detect.Saved[linkHistory]{Store: store, Key: key}
	h, _ := saved.Load(func(h linkHistory) bool { return len(h.Links) <= maxCards })
	if h.saved = saved; h.Links == nil {
		h.Links = map[string]bool{}
	}
	return h
}

func (h *linkHistory) add(name string) {
	if !h.Links[name] && len(h.Links) < maxCards {
		h.Links[name], h.changed = true, true
	}
}

func (h *linkHistory) save() {
	if h.changed {
		h.saved.Save(*h)
		h.changed = false
	}
}
