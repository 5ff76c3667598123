package report

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// DefaultOutboxLimit is how many items an outbox holds by default.
const DefaultOutboxLimit = 1000

// Outbox is a durable bounded queue for a sink that may be unreachable for a day. It is kept in memory and written
// behind to a store. Overflow drops the oldest of the least severe, and counts them.
type Outbox struct {
	behind *WriteBehind

	mu      sync.Mutex // guards all below
	queue   queue
	dropped map[finding.Severity]int
}

// NewOutbox returns an outbox with what the store holds. A record that cannot be read is removed and
// logged.
func NewOutbox(limit int, store Store, log *slog.Logger) *Outbox {
	if limit <= 0 {
		limit = DefaultOutboxLimit
	}
	o := &Outbox{
		behind:  NewWriteBehind(store, log),
		queue:   queue{limit: limit, items: map[string]*Item{}},
		dropped: map[finding.Severity]int{},
	}
	if store == nil {
		return o
	}
	err := store.ForEach(func(key string, value []byte) error {
		var item Item
		if err := json.Unmarshal(value, &item); err != nil || item.ID == "" || storeKey(item) != key {
			log.Warn("stored report is not readable and is removed", "key", key, "err", err)
			o.behind.Delete(key)
			return nil
		}
		o.add(item)
		return nil
	})
	if err != nil {
		log.Warn("stored reports are not readable", "err", err)
	}
	return o
}

// storeKey orders items in the store by age.
func storeKey(item Item) string { return fmt.Sprintf("%016x-%s", item.Seq, item.ID) }

// Start begins to write to the store; see WriteBehind.Start.
func (o *Outbox) Start(ctx context.Context) (stop func() error) { return o.behind.Start(ctx) }

// Add puts an item in. It never blocks. An ID that is already in is not added again.
func (o *Outbox) Add(item Item) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.add(item)
}

func (o *Outbox) add(item Item) {
	victim := o.queue.add(item)
	if added, ok := o.queue.items[item.ID]; ok {
		o.keep(added)
	}
	if victim != nil {
		o.dropped[victim.Severity] += victim.Count
		o.behind.Delete(storeKey(*victim))
	}
}

func (o *Outbox) keep(item *Item) {
	data, err := json.Marshal(item)
	if err == nil { // an item is plain data, and its Body was checked when it was made
		o.behind.Put(storeKey(*item), data)
	}
}

// Next returns the item to send, the oldest of the most severe, and whether there is one. It stays in until Remove.
func (o *Outbox) Next() (Item, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if item := o.queue.next(); item != nil {
		return *item, true
	}
	return Item{}, false
}

// Remove takes an item out: it was sent, or never will be.
func (o *Outbox) Remove(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if item, ok := o.queue.items[id]; ok {
		delete(o.queue.items, id)
		o.behind.Delete(storeKey(*item))
	}
}

// Waiting returns how many items of a key wait to be sent, and a copy of the one that is held, nil if none is.
func (o *Outbox) Waiting(key string) (n int, held *Item) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, item := o.queue.waiting(key)
	if item != nil {
		held = new(*item)
	}
	return n, held
}

// Held returns the items that are still gathering, the oldest first.
func (o *Outbox) Held() []Item {
	o.mu.Lock()
	defer o.mu.Unlock()
	var held []Item
	for _, item := range o.queue.held() {
		held = append(held, *item)
	}
	return held
}

// Replace stores an item that has changed; it does nothing when the item is not in any more.
func (o *Outbox) Replace(item Item) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.queue.items[item.ID]; ok {
		o.queue.items[item.ID] = &item
		o.keep(&item)
	}
}

// Has reports whether an ID is in.
func (o *Outbox) Has(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, ok := o.queue.items[id]
	return ok
}

// Len returns how many items are in.
func (o *Outbox) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.queue.items)
}

// TakeDropped returns how many things were given up since it was last called, by severity.
func (o *Outbox) TakeDropped() map[finding.Severity]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	dropped := o.dropped
	o.dropped = map[finding.Severity]int{}
	return dropped
}
