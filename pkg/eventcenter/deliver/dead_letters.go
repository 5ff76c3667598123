package deliver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/web/control"
)

// DeadLetter is an event that a subscriber has not accepted before the center gave up.
type DeadLetter struct {
	Subscription string          `json:"subscription"`
	ID           string          `json:"id"`               // of the letter, unique within the subscription
	Offset       string          `json:"offset,omitempty"` // in the journal; empty: a gap
	Cluster      string          `json:"cluster,omitempty"`
	Node         string          `json:"node,omitempty"`
	Type         string          `json:"type"`
	Reason       string          `json:"reason"` // of the last attempt
	Attempts     int             `json:"attempts"`
	Since        time.Time       `json:"since"` // the first attempt
	At           time.Time       `json:"at"`    // when the center gave up
	EventID      string          `json:"webhookId"`
	Event        json.RawMessage `json:"event,omitempty"`
}

func deadLetterOf(s *subscription, r journal.Record) DeadLetter {
	return DeadLetter{Subscription: s.Name, ID: fmt.Sprintf("%020d", r.Offset), Offset: strconv.FormatUint(r.Offset, 10),
		Cluster: r.Cluster, Node: r.Node, Type: r.Type, Event: r.Text(), EventID: s.itemOf(r).ID}
}

func deadLetterOfGap(s *subscription, h *held) DeadLetter {
	sum := sha256.Sum256([]byte(h.ID))
	return DeadLetter{Subscription: s.Name, ID: "gap-" + hex.EncodeToString(sum[:8]), EventID: h.ID, Event: h.Event,
		Type: string(event.SubscriptionGap)}
}

// bury makes an event a dead letter before its node continues, and reports whether it succeeded. Beyond the limit it
// drops the oldest one and logs that.
func (m *Manager) bury(ctx context.Context, s *subscription, l DeadLetter, h *held) bool {
	s.mu.Lock()
	l.Reason, l.Attempts, l.Since, l.At = h.Error, h.Attempts, h.Since.UTC(), time.Now().UTC()
	s.mu.Unlock()
	value, err := json.Marshal(l)
	if err == nil {
		_, err = m.Store.Put(ctx, deadLetters, s.Name+"."+l.ID, value, 0)
	}
	if err != nil && !errors.Is(err, control.ErrConflict) { // an existing one is from before a crash
		m.Log.Error("write a dead letter failed: retrying the event", "subscription", s.Name, "err", err)
		return false
	}
	m.Log.Warn("give up an event", "subscription", s.Name, "letter", l.ID, "attempts", l.Attempts, "reason", l.Reason)
	s.mu.Lock()
	s.counts.Dead++
	if !slices.Contains(s.letters, l.ID) {
		s.letters = append(s.letters, l.ID)
	}
	var oldest string
	if len(s.letters) > m.Settings.MaxDeadLetters {
		oldest = s.letters[0]
	}
	s.mu.Unlock()
	if oldest != "" {
		m.drop(ctx, s, oldest)
	}
	return true
}

// drop removes the oldest dead letter to make room.
func (m *Manager) drop(ctx context.Context, s *subscription, id string) {
	err := m.audit(ctx, Who{Name: "eventcenter"}, "drop the oldest dead letter", s.Name, id)
	if err == nil {
		err = m.removeDeadLetter(ctx, s.Name, id)
	}
	if err != nil {
		m.Log.Error("drop the oldest dead letter failed", "subscription", s.Name, "letter", id, "err", err)
		return
	}
	m.Log.Warn("drop the oldest dead letter: there are too many", "subscription", s.Name, "letter", id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Dropped++
	s.dirty = true
}

// removeDeadLetter removes an existing dead letter.
func (m *Manager) removeDeadLetter(ctx context.Context, name, id string) error {
	record, err := m.Store.Get(ctx, deadLetters, name+"."+id)
	if err == nil {
		err = m.Store.Delete(ctx, deadLetters, record.Key, record.Revision)
	}
	if err != nil && !errors.Is(err, control.ErrNotFound) {
		return err
	}
	if s, err := m.find(name); err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.letters = slices.DeleteFunc(s.letters, func(other string) bool { return other == id })
	}
	return nil
}

// delivered removes a dead letter once it has been delivered.
func (m *Manager) delivered(ctx context.Context, s *subscription, h *held) {
	if h.DeadLetter == "" {
		return
	}
	if err := m.removeDeadLetter(ctx, s.Name, h.DeadLetter); err != nil {
		m.Log.Error("remove a delivered dead letter failed", "subscription", s.Name, "letter", h.DeadLetter,
			"err", err)
	}
}

// DeadLetters returns the dead letters of a subscription, or all of them, without the events; oldest first.
func (m *Manager) DeadLetters(ctx context.Context, name string) ([]DeadLetter, error) {
	prefix := ""
	if name != "" {
		prefix = name + "."
	}
	records, err := m.Store.List(ctx, deadLetters, prefix)
	if err != nil {
		return nil, err
	}
	letters := []DeadLetter{}
	for _, r := range records {
		var l DeadLetter
		if err := json.Unmarshal(r.Value, &l); err != nil {
			return nil, fmt.Errorf("dead letter %s: %w", r.Key, err)
		}
		l.Event = nil
		letters = append(letters, l)
	}
	return letters, nil
}

// DeadLetter returns one dead letter.
func (m *Manager) DeadLetter(ctx context.Context, name, id string) (l DeadLetter, err error) {
	if !subscriptionName.MatchString(name) || strings.Contains(id, ".") || control.Problem(deadLetters, name+"."+id, nil) != nil {
		return l, fmt.Errorf("dead letter %.64q of %.64q: %w", id, name, ErrUnknown)
	}
	record, err := m.Store.Get(ctx, deadLetters, name+"."+id)
	if errors.Is(err, control.ErrNotFound) {
		return l, fmt.Errorf("dead letter %s of %s: %w", id, name, ErrUnknown)
	}
	if err == nil {
		err = json.Unmarshal(record.Value, &l)
	}
	return l, err
}

// Redeliver tries a dead letter again, independently of other deliveries; it stays a dead letter until it is delivered.
func (m *Manager) Redeliver(ctx context.Context, who Who, name, id string) error {
	l, err := m.DeadLetter(ctx, name, id)
	if err != nil {
		return err
	}
	full := false
	err = m.change(ctx, who, "replay dead letter", name, id, func(s *subscription) {
		if full = len(s.state.Held) >= maxHeld; !full {
			s.hold(&held{Held: Held{ID: l.EventID}, After: s.state.Cursor, DeadLetter: l.ID})
		}
	})
	if err == nil && full {
		err = fmt.Errorf("subscription %s: too much is held back already: %w", name, ErrRefused)
	}
	return err
}

// Forget deletes a dead letter.
func (m *Manager) Forget(ctx context.Context, who Who, name, id string) error {
	if _, err := m.DeadLetter(ctx, name, id); err != nil {
		return err
	}
	if err := m.audit(ctx, who, "delete dead letter", name, id); err != nil {
		return err
	}
	return m.removeDeadLetter(ctx, name, id)
}
