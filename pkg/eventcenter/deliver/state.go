package deliver

import (
	"encoding/json"
	"fmt"
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

	Journal string  `json:"journal"` // the ID of the journal of Cursor
	Cursor  uint64  `json:"cursor"`  // up to here every event is delivered, held or a dead letter
	Held    []*held `json:"held,omitempty"`

	Paused  string `json:"paused,omitempty"` // the reason; empty: not paused
	Dropped uint64 `json:"dropped,omitempty"`
}

// held is a node whose next event was not accepted, and which continues independently of the others; or a single event
// that is not, or no longer, in the journal.
type held struct {
	Cluster string `json:"cluster,omitempty"`
	Node    string `json:"node,omitempty"`
	Source  string `json:"source,omitempty"` // of events without a node
	After   uint64 `json:"after,omitempty"`  // up to here, and up to the cursor, every event of the node is done

	Event      json.RawMessage `json:"event,omitempty"`  // instead of a node: one event
	ID         string          `json:"id,omitempty"`     // of Event
	DeadLetter string          `json:"letter,omitempty"` // the dead letter of Event

	Since    time.Time `json:"since,omitzero"` // the first attempt for the next event
	Attempts int       `json:"attempts,omitempty"`
	Next     time.Time `json:"next,omitzero"` // when the next attempt is due
	Error    string    `json:"error,omitempty"`

	busy bool // a goroutine is sending it
}

// maxHeld bounds the nodes of a subscription that are held one by one. Beyond it the whole subscription waits.
const maxHeld = 1000

// laneOf returns the unit in which events stay in order: a node, or a source if there is no node.
func laneOf(r journal.Record) held {
	if r.Node != "" {
		return held{Cluster: r.Cluster, Node: r.Node}
	}
	return held{Source: r.Source}
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

// earliest returns when the first of Held is due; zero: none.
func (s *state) earliest() (first time.Time) {
	for _, h := range s.Held {
		if !h.busy && (first.IsZero() || h.Next.Before(first)) {
			first = h.Next
			if first.IsZero() {
				first = time.Unix(0, 0)
			}
		}
	}
	return first
}

// due takes those of Held that are due, the most overdue first.
func (s *state) due(now time.Time, most int) (due []*held) {
	sorted := slices.Clone(s.Held)
	slices.SortStableFunc(sorted, func(a, b *held) int { return a.Next.Compare(b.Next) })
	for _, h := range sorted {
		if !h.busy && !h.Next.After(now) && len(due) < most {
			h.busy = true
			due = append(due, h)
		}
	}
	return due
}

func (s *state) release(h *held) {
	s.Held = slices.DeleteFunc(s.Held, func(other *held) bool { return other == h })
}

// gapEvent returns the event that tells a subscriber which events it will miss.
func gapEvent(subscription, journalID string, lost event.Lost, at time.Time) (id string, text []byte, err error) {
	id = fmt.Sprintf("%s-%s-%s", journalID, lost.From, lost.To)
	if lost.Node != "" {
		id += "-" + lost.Cluster + "-" + lost.Node
	}
	text, err = json.Marshal(map[string]any{
		"specversion": "1.0", "id": id, "source": "/eventcenter/subscriptions/" + subscription,
		"type": event.SubscriptionGap, "time": at.UTC(), "datacontenttype": "application/json",
		"dataschema": event.SubscriptionGap.Schema(), "severity": "warning", "data": lost,
	})
	return id, text, err
}
