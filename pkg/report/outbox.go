package report

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// DefaultOutboxLimit is how many items an outbox holds by default.
const DefaultOutboxLimit = 1000

// Outbox is a durable bounded queue for a sink that may be unreachable for a day. It is kept in memory and written
// behind to a store. Overflow drops the oldest of the least severe, and counts them.
type Outbox struct {
	behind *WriteBehind
	limit  int // items; 0: any number
	bytes  int // of bodies; 0: any number
	named  bool

	mu      sync.Mutex // guards all below
	seq     uint64
	items   map[string]*Item
	counts  Counts
	dropped map[finding.Severity]int
}

// OutboxOptions bound an outbox of streams, which tells its receiver by name which items it will not get.
type OutboxOptions struct {
	Bytes  int           // of bodies
	Delay  time.Duration // delay before a new item is stored: the sink may be faster
	Store  Store         // nil: items are not stored
	Loaded func()        // is called when the items of the store are loaded
	Log    *slog.Logger
}

// NewOutbox returns an outbox with the items of the store. It removes and logs unreadable records.
func NewOutbox(limit int, store Store, log *slog.Logger) *Outbox {
	if limit <= 0 {
		limit = DefaultOutboxLimit
	}
	o := newOutbox(store, log)
	o.limit = limit
	o.load()
	return o
}

// NewStreams returns an outbox that reads the store in Start, so that a hung disk does not block the caller. The Key of
// an item names its stream. An item that is given up stays, without its body, until Remove.
func NewStreams(options OutboxOptions) *Outbox {
	o := newOutbox(options.Store, options.Log)
	o.bytes, o.named = options.Bytes, true
	o.behind.delay = options.Delay
	o.behind.first = func() {
		o.load()
		options.Loaded()
	}
	return o
}

func newOutbox(store Store, log *slog.Logger) *Outbox {
	return &Outbox{behind: NewWriteBehind(store, log), items: map[string]*Item{}, dropped: map[finding.Severity]int{}}
}

func (o *Outbox) load() {
	store, log := o.behind.store, o.behind.log
	if store == nil {
		return
	}
	err := store.ForEach(func(key string, value []byte) error {
		o.mu.Lock()
		defer o.mu.Unlock()
		item, err := readItem(key, value)
		if err != nil {
			log.Warn("remove an unreadable stored report", "key", key, "err", err)
			o.behind.Delete(key)
		}
		if err == nil || o.named && item.ID != "" {
			o.add(item, false)
		}
		return nil
	})
	if err != nil {
		log.Warn("read stored reports failed", "err", err)
	}
}

// Start begins to write to the store; see WriteBehind.Start.
func (o *Outbox) Start(ctx context.Context) (stop func() error) { return o.behind.Start(ctx) }

// Add adds an item. It never blocks. It ignores a known ID.
func (o *Outbox) Add(item Item) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.add(item, true)
}

// add adds an item; fresh means that the store has no value under its key.
func (o *Outbox) add(item Item, fresh bool) {
	if _, ok := o.items[item.ID]; ok {
		return
	}
	if item.Seq == 0 {
		item.Seq = o.seq + 1
	}
	o.seq = max(o.seq, item.Seq)
	o.put(&item, fresh)
	o.shed()
}

// put adds an item, or replaces the one with its ID, in memory and in the store.
func (o *Outbox) put(item *Item, fresh bool) {
	o.forget(item.ID)
	o.items[item.ID] = item
	o.count(item, 1)
	o.behind.put(item.storeKey(), item.stored(), fresh)
}

// forget removes an item from memory.
func (o *Outbox) forget(id string) {
	if item, ok := o.items[id]; ok {
		delete(o.items, id)
		o.count(item, -1)
	}
}

func (o *Outbox) count(item *Item, n int) {
	o.counts.Bytes += n * len(item.Body)
	switch {
	case item.Lost != "":
		o.counts.Lost += n
	case item.Held:
		o.counts.Held += n
	default:
		o.counts.Waiting += n
	}
}

// shed drops items until the limits hold. For the limit of bytes it frees more than needed, since it sorts all items.
func (o *Outbox) shed() {
	tooMany, tooLarge := o.limit > 0 && len(o.items) > o.limit, o.bytes > 0 && o.counts.Bytes > o.bytes
	if !tooMany && !tooLarge {
		return
	}
	for _, item := range o.sorted(expendable, func(i *Item) bool { return i.Lost == "" }) {
		if (o.limit == 0 || len(o.items) <= o.limit) && (!tooLarge || o.counts.Bytes <= o.bytes*7/8) {
			break
		}
		o.drop(item, "dropped")
	}
}

// drop gives up an item and counts it.
func (o *Outbox) drop(item *Item, why string) {
	if item.Count > 0 {
		o.dropped[item.Severity] += item.Count
	}
	o.giveUp(item, why)
}

// giveUp removes an item. In an outbox of streams an item that was to be sent stays under its name, without its body.
func (o *Outbox) giveUp(item *Item, why string) {
	if o.named && !item.Held {
		o.put(&Item{ID: item.ID, Seq: item.Seq, Key: item.Key, Severity: item.Severity, First: item.First, Lost: why}, false)
		return
	}
	o.forget(item.ID)
	o.behind.Delete(item.storeKey())
}

// sorted returns the items that match is.
func (o *Outbox) sorted(compare func(a, b *Item) int, is func(*Item) bool) (items []*Item) {
	for _, item := range o.items {
		if is(item) {
			items = append(items, item)
		}
	}
	slices.SortFunc(items, compare)
	return items
}

// Next returns the item to send, the oldest of the most severe, and whether there is one. The item stays until Remove.
func (o *Outbox) Next() (next Item, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, item := range o.items {
		if !item.Held && (!ok || urgent(item, &next) < 0) {
			next, ok = *item, true
		}
	}
	return next, ok
}

// Remove removes an item: it was sent, or never will be.
func (o *Outbox) Remove(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if item, ok := o.items[id]; ok {
		o.forget(id)
		o.behind.Delete(item.storeKey())
	}
}

// Waiting returns how many items of a key wait to be sent, and a copy of the held one, nil if there is none.
func (o *Outbox) Waiting(key string) (n int, held *Item) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, item := range o.items {
		switch {
		case item.Key != key:
		case item.Held:
			held = new(*item)
		default:
			n++
		}
	}
	return n, held
}

// Held returns the items that are not to be sent yet, the oldest first.
func (o *Outbox) Held() (held []Item) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, item := range o.sorted(byAge, func(i *Item) bool { return i.Held }) {
		held = append(held, *item)
	}
	return held
}

// Replace stores a changed item, if the item is still in the outbox.
func (o *Outbox) Replace(item Item) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.items[item.ID]; ok {
		o.put(&item, false)
	}
}

// Batch returns items of one stream to send, ordered by stream and then by age: at most count, and about size bytes.
// They stay until Remove.
func (o *Outbox) Batch(count, size int) (batch []Item) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, item := range o.sorted(inStreams, func(i *Item) bool { return !i.Held && i.Lost == "" }) {
		size -= len(item.Body)
		if len(batch) > 0 && (size < 0 || len(batch) == count || item.Key != batch[0].Key) {
			break
		}
		batch = append(batch, *item)
	}
	return batch
}

// Lost returns the items that were given up and not yet removed.
func (o *Outbox) Lost() (lost []Item) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.counts.Lost == 0 {
		return nil
	}
	for _, item := range o.sorted(inStreams, func(i *Item) bool { return i.Lost != "" }) {
		lost = append(lost, *item)
	}
	return lost
}

// Expire gives up items older than a moment.
func (o *Outbox) Expire(before time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, item := range o.sorted(inStreams, func(i *Item) bool { return i.Lost == "" && i.First.Before(before) }) {
		o.drop(item, "expired")
	}
}

// GiveUp gives up an item that will never be sent.
func (o *Outbox) GiveUp(id, why string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if item, ok := o.items[id]; ok {
		o.giveUp(item, why)
	}
}

// Counts are the sizes of an outbox: the items that wait, are held, and were given up and not yet removed, and the
// bytes of all bodies.
type Counts struct{ Waiting, Held, Lost, Bytes int }

// Counts returns the present sizes.
func (o *Outbox) Counts() Counts {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.counts
}

// Has reports whether an ID is in the outbox.
func (o *Outbox) Has(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, ok := o.items[id]
	return ok
}

// Len returns the number of items.
func (o *Outbox) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.items)
}

// TakeDropped returns how many things were given up since the last call, by severity.
func (o *Outbox) TakeDropped() map[finding.Severity]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	dropped := o.dropped
	o.dropped = map[finding.Severity]int{}
	return dropped
}
