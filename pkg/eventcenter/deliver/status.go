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

	DeadLetters int    `json:"deadLetters"`
	Dropped     uint64 `json:"droppedDeadLetters"` // ever
	Counts
}

// Counts are of events and requests since the start of the center.
type Counts struct {
	Delivered    uint64 `json:"delivered"`
	Failed       uint64 `json:"failed"`
	Dead         uint64 `json:"dead"`
	FilterErrors uint64 `json:"filterErrors"`
	Missed       uint64 `json:"-"` // only for the metric
}

const maxShown = 100

// List returns all subscriptions, by name.
func (m *Manager) List() []Status {
	m.mu.Lock()
	all := slices.SortedFunc(maps.Values(m.subscriptions), func(a, b *subscription) int { return cmp.Compare(a.Name, b.Name) })
	m.mu.Unlock()
	newest := m.Journal.Bounds().Newest
	list := make([]Status, 0, len(all))
	for _, s := range all {
		list = append(list, s.status(newest, time.Now()))
	}
	return list
}

func (s *subscription) status(newest uint64, now time.Time) Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{Subscription: s.Subscription, Configured: s.configured, By: s.registered, DeadLetters: len(s.letters),
		Cursor: strconv.FormatUint(s.state.Cursor, 10),
		Newest: strconv.FormatUint(newest, 10), Paused: s.state.Paused, Problem: s.problem, NextMode: s.state.modeNow(),
		Held: len(s.state.Held), Dropped: s.state.Dropped, Counts: s.counts}
	if newest > s.state.Cursor {
		st.LagEvents = newest - s.state.Cursor
	}
	oldest := s.behind
	for i, h := range s.state.Held {
		if i < maxShown {
			st.HeldBack = append(st.HeldBack, h.Held)
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
