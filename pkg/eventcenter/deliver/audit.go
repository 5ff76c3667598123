package deliver

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Who is the person or program that makes a change.
type Who struct {
	Name    string `json:"name"`
	By      string `json:"by,omitempty"`      // how the name was proven
	Cluster string `json:"cluster,omitempty"` // that vouched for the name
}

// Entry records who did what, and when. It is written before the change is made.
type Entry struct {
	At           time.Time `json:"at"`
	Who          Who       `json:"who"`
	What         string    `json:"what"`
	Subscription string    `json:"subscription"`
	Detail       string    `json:"detail,omitempty"`
}

// maxEntries is how many entries are kept, and a tenth more at times; the oldest go first.
const maxEntries = 5000

// audit records a change before it is made. A change that it cannot record must not be made.
func (m *Manager) audit(ctx context.Context, who Who, what, subscription, detail string) error {
	now := time.Now().UTC()
	who.Name = plain(who.Name)
	value, err := json.Marshal(Entry{now, who, what, subscription, detail})
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.written++
	written := m.written
	m.mu.Unlock()
	key := fmt.Sprintf("%020d-%06d-%s", now.UnixNano(), written, rand.Text()[:8]) // in order even within a nanosecond
	if _, err := m.Store.Put(ctx, audits, key, value, 0); err != nil {
		return fmt.Errorf("it cannot be written down who does this, so it is not done: %w", err)
	}
	m.Log.Info("subscription changed", "what", what, "subscription", subscription, "who", who.Name, "by", who.By,
		"cluster", who.Cluster)
	if written%(maxEntries/10) == 1 {
		m.forgetEntries(ctx)
	}
	return nil
}

// forgetEntries drops the oldest entries beyond the limit.
func (m *Manager) forgetEntries(ctx context.Context) {
	records, err := m.Store.List(ctx, audits, "")
	for _, r := range records[:max(0, len(records)-maxEntries)] {
		err = errors.Join(err, m.Store.Delete(ctx, audits, r.Key, r.Revision))
	}
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) { // otherwise the client has gone
		m.Log.Error("drop old audit entries failed", "err", err)
	}
}

// Audit returns the latest entries, newest first.
func (m *Manager) Audit(ctx context.Context, limit int) ([]Entry, error) {
	records, err := m.Store.List(ctx, audits, "")
	if err != nil {
		return nil, err
	}
	entries := []Entry{}
	for _, r := range slices.Backward(records) {
		if len(entries) == limit {
			break
		}
		var e Entry
		if err := json.Unmarshal(r.Value, &e); err != nil {
			return nil, fmt.Errorf("audit %s: %w", r.Key, err)
		}
		entries = append(entries, e)
	}
	return entries, nil
}
