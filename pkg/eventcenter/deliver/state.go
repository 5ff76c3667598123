package deliver

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// state is the progress of a subscription. It is one record, so that its fields are always consistent.
type state struct {
	// Of is the address and the mode for which Mode, Granted and PerMinute were found out.
	Of        string     `json:"of"`
	Mode      event.Mode `json:"mode"`
	Granted   time.Time  `json:"granted,omitzero"` // when the target agreed to receive events
	PerMinute int        `json:"perMinute,omitempty"`

	// NoBatches is until when a target that refused a batch, but not its event alone, is sent single events.
	NoBatches time.Time `json:"noBatchesUntil,omitzero"`

	Journal string  `json:"journal"` // the ID of the journal of Cursor
	Cursor  uint64  `json:"cursor"`  // up to here every event is delivered, held or a dead letter
	Held    []*held `json:"held,omitempty"`

	Paused  string `json:"paused,omitempty"` // the reason; empty: not paused
	Dropped uint64 `json:"dropped,omitempty"`
}

// held is a node whose next event was not accepted, and which continues independently of the others; or an event about a
// gap; or a dead letter. A letter's event stays in the letter: many large ones would not fit into the record.
type held struct {
	Held
	After uint64 `json:"after,omitempty"` // up to here, and up to the cursor, every event of the node is done

	Event      json.RawMessage `json:"event,omitempty"`  // about a gap; an earlier release had that of a dead letter too
	DeadLetter string          `json:"letter,omitempty"` // the ID of a replayed dead letter
}

// Held is a held node, or one event outside the order of the others.
type Held struct {
	Cluster  string    `json:"cluster,omitempty"`
	Node     string    `json:"node,omitempty"`
	Source   string    `json:"source,omitempty"` // of events without a node
	ID       string    `json:"id,omitempty"`     // of the one event
	Since    time.Time `json:"since,omitzero"`   // the first attempt for the next event
	Next     time.Time `json:"next,omitzero"`    // when the next attempt is due
	Attempts int       `json:"attempts"`
	Error    string    `json:"error,omitempty"`
}

// maxHeld bounds the nodes of a subscription that are held one by one. Beyond it the whole subscription waits.
const maxHeld = 1000

// laneOf returns the unit in which events stay in order: a node, or a source if there is no node.
func laneOf(r journal.Record) held {
	if r.Node != "" {
		return held{Held: Held{Cluster: r.Cluster, Node: r.Node}}
	}
	return held{Held: Held{Source: r.Source}}
}

func (h *held) key() string { return h.Cluster + "\x00" + h.Node + "\x00" + h.Source }

// failed records a failed attempt.
func (h *held) failed(now time.Time, err error) {
	if h.Since.IsZero() {
		h.Since = now
	}
	h.Attempts++
	h.Error = plain(err.Error())
	h.Next = now.Add(backoff(h.Attempts))
}

// succeeded resets the failures.
func (h *held) succeeded() { h.Since, h.Attempts, h.Next, h.Error = time.Time{}, 0, time.Time{}, "" }

const (
	firstBackoff = time.Second
	maxBackoff   = 5 * time.Minute
)

// backoff returns a random part of a duration that doubles with each failure, up to five minutes (full jitter).
func backoff(failures int) time.Duration {
	span := maxBackoff
	if failures < 20 { // more doublings would exceed the maximum
		span = min(span, firstBackoff<<max(failures-1, 0))
	}
	return time.Duration(rand.Float64() * float64(span))
}

// modeNow returns the mode of the next request.
func (s *state) modeNow() event.Mode {
	if s.Mode == event.Batch && time.Now().Before(s.NoBatches) {
		return event.Structured
	}
	return s.Mode
}

func (s *state) release(h *held) {
	s.Held = slices.DeleteFunc(s.Held, func(other *held) bool { return other == h })
}

// positionAfter returns the position of a subscription that begins after an offset: after 0, it begins with the oldest
// event.
func (m *Manager) positionAfter(after uint64) uint64 {
	if after == 0 {
		return m.Journal.Bounds().Oldest - 1
	}
	return after
}

// read reads the journal. Offset 0 is a position like any other: a dropped first event is lost.
func (m *Manager) read(ctx context.Context, q journal.Query) (journal.Page, error) {
	page, err := m.Journal.Read(ctx, q)
	if oldest := m.Journal.Bounds().Oldest; err == nil && q.After == 0 && oldest > 1 {
		err = &journal.TrimmedError{Oldest: oldest}
	}
	return page, err
}
