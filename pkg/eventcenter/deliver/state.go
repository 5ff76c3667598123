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

// state is how far a subscription is: all of it is one record, so that it is always true of one moment.
type state struct {
	// Of is the address and the mode that Mode, Granted and PerMinute were learnt with.
	Of        string    `json:"of"`
	Mode      Mode      `json:"mode"`
	Granted   time.Time `json:"granted,omitzero"` // the target has said that it wants events
	PerMinute int       `json:"perMinute,omitempty"`

	Journal string  `json:"journal"` // that Cursor is of
	Cursor  uint64  `json:"cursor"`  // up to it everything is delivered, held or a dead letter
	Held    []*held `json:"held,omitempty"`

	Paused  string `json:"paused,omitempty"` // why; empty: it is not
	Dropped uint64 `json:"dropped,omitempty"`
}

// held is a node whose next event was not taken, and which goes on beside the others; or one event that is not, or no
// longer, of the journal.
type held struct {
	Cluster string `json:"cluster,omitempty"`
	Node    string `json:"node,omitempty"`
	Source  string `json:"source,omitempty"` // of events without a node
	After   uint64 `json:"after,omitempty"`  // up to it, and to the cursor, everything of the node is dealt with

	Event  json.RawMessage `json:"event,omitempty"`  // instead: one event
	ID     string          `json:"id,omitempty"`     // of Event
	Letter string          `json:"letter,omitempty"` // the dead letter that Event is of

	Since    time.Time `json:"since,omitzero"` // the first attempt of what comes next
	Attempts int       `json:"attempts,omitempty"`
	Next     time.Time `json:"next,omitzero"` // attempt
	Error    string    `json:"error,omitempty"`

	busy bool // somebody is at it
}

// maxHeld bounds the nodes of a subscription that are held back one by one. Beyond it the subscription waits as a whole.
const maxHeld = 1000

// laneOf returns what the order of events is kept of: a node, else a source.
func laneOf(r journal.Record) held {
	if r.Node != "" {
		return held{Cluster: r.Cluster, Node: r.Node}
	}
	return held{Source: r.Source}
}

func (h *held) key() string { return h.Cluster + "\x00" + h.Node + "\x00" + h.Source }

// failed notes an attempt that failed.
func (h *held) failed(now time.Time, err error) {
	if h.Since.IsZero() {
		h.Since = now
	}
	h.Attempts++
	h.Error = plain(err.Error())
	h.Next = now.Add(backoff(h.Attempts))
}

// succeeded makes the next failure the first one again.
func (h *held) succeeded() { h.Since, h.Attempts, h.Next, h.Error = time.Time{}, 0, time.Time{}, "" }

const (
	firstBackoff = time.Second
	maxBackoff   = 5 * time.Minute
)

// backoff returns a random part of a span that doubles with each failure, up to five minutes (full jitter).
func backoff(failures int) time.Duration {
	span := maxBackoff
	if failures < 20 { // more doublings are beyond it
		span = min(span, firstBackoff<<max(failures-1, 0))
	}
	return time.Duration(rand.Float64() * float64(span))
}

// earliest returns when the first of the held is due; zero: none is.
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

// due takes the held that are due, the longest due first.
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

// gapEvent returns the event that says to a subscriber what it will not see.
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
