package deliver

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
)

// Status is the state of a subscription as shown to users.
type Status struct {
	Subscription
	Configured bool          `json:"configured"` // in the settings, not registered through the API
	By         *Registration `json:"registered,omitempty"`
	Cursor     string        `json:"cursor"`
	Newest     string        `json:"newest"`
	LagEvents  uint64        `json:"lagEvents"`  // offsets beyond the cursor, including events that it does not want
	LagSeconds float64       `json:"lagSeconds"` // how long the oldest pending event has waited
	Paused     string        `json:"paused,omitempty"`
	Problem    string        `json:"problem,omitempty"`
	NextMode   event.Mode    `json:"modeInUse"`
	HeldBack   []Held        `json:"heldBack,omitempty"` // at most 100
	Held       int           `json:"held"`

	DeadLetters  int    `json:"deadLetters"`
	Delivered    uint64 `json:"delivered"` // since the start of the center
	Failed       uint64 `json:"failed"`
	Dead         uint64 `json:"dead"`
	Dropped      uint64 `json:"droppedDeadLetters"` // ever
	FilterErrors uint64 `json:"filterErrors"`
	Missed       uint64 `json:"-"` // only for the metric
}

// Held is a held node, or one event outside the order of the others.
type Held struct {
	Cluster  string    `json:"cluster,omitempty"`
	Node     string    `json:"node,omitempty"`
	Source   string    `json:"source,omitempty"`
	ID       string    `json:"id,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	Next     time.Time `json:"next,omitzero"`
	Attempts int       `json:"attempts"`
	Error    string    `json:"error,omitempty"`
}

const maxShown = 100

// List returns all subscriptions, by name.
func (m *Manager) List() []Status {
	m.mu.Lock()
	all := slices.SortedFunc(maps.Values(m.subscriptions), func(a, b *subscription) int { return cmp.Compare(a.Name, b.Name) })
	by, dead := maps.Clone(m.by), map[string]int{}
	for name, ids := range m.deadLetterIDs {
		dead[name] = len(ids)
	}
	m.mu.Unlock()
	newest := m.Journal.Bounds().Newest
	list := make([]Status, 0, len(all))
	for _, s := range all {
		st := s.status(newest, time.Now())
		st.DeadLetters = dead[s.Name]
		if r, ok := by[s.Name]; ok && !s.configured {
			st.By = &r
		}
		list = append(list, st)
	}
	return list
}

func (s *subscription) status(newest uint64, now time.Time) Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{Subscription: s.Subscription, Configured: s.configured, Cursor: strconv.FormatUint(s.state.Cursor, 10),
		Newest: strconv.FormatUint(newest, 10), Paused: s.state.Paused, Problem: s.problem, NextMode: s.state.Mode,
		Held: len(s.state.Held), Delivered: s.counts.delivered, Failed: s.counts.failed, Dead: s.counts.dead,
		Dropped: s.state.Dropped, FilterErrors: s.counts.filterErrors, Missed: s.counts.missed}
	if newest > s.state.Cursor {
		st.LagEvents = newest - s.state.Cursor
	}
	oldest := s.behind
	for i, h := range s.state.Held {
		if i < maxShown {
			st.HeldBack = append(st.HeldBack, Held{h.Cluster, h.Node, h.Source, h.ID, h.Since, h.Next, h.Attempts, h.Error})
		}
		if !h.Since.IsZero() && (oldest.IsZero() || h.Since.Before(oldest)) {
			oldest = h.Since
		}
	}
	if !oldest.IsZero() {
		st.LagSeconds = max(0, now.Sub(oldest).Seconds())
	}
	return st
}
