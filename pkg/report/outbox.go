package report

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"strconv"
	"strings"
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

	mu      sync.Mutex // guards all below
	queue   queue
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
	o := newOutbox(queue{limit: limit}, store, log)
	o.load()
	return o
}

// NewStreams returns an outbox that reads the store in Start, so that a hung disk does not block the caller. The Key of
// an item names its stream. An item that is given up stays, without its body, until Remove.
func NewStreams(options OutboxOptions) *Outbox {
	o := newOutbox(queue{bytes: options.Bytes, named: true}, options.Store, options.Log)
	o.behind.delay = options.Delay
	o.behind.first = func() {
		o.load()
		options.Loaded()
	}
	return o
}

func newOutbox(q queue, store Store, log *slog.Logger) *Outbox {
	q.items = map[string]*Item{}
	return &Outbox{behind: NewWriteBehind(store, log), queue: q, dropped: map[finding.Severity]int{}}
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
		if err == nil || o.queue.named && item.ID != "" {
			o.add(item, false)
		}
		return nil
	})
	if err != nil {
		log.Warn("read stored reports failed", "err", err)
	}
}

// storeKey orders items in the store by age.
func storeKey(item Item) string { return fmt.Sprintf("%016x-%s", item.Seq, item.ID) }

// readItem reads the format of Stored: a checksum and the item. If only the key is readable, the item is lost.
func readItem(key string, value []byte) (item Item, err error) {
	sum, text, ok := bytes.Cut(value, []byte(" "))
	switch {
	case bytes.HasPrefix(value, []byte("{")): // written by an agent before there were checksums
		text = value
	case !ok || string(sum) != checksum(text):
		err = errors.New("checksum does not match")
	}
	if err == nil {
		err = json.Unmarshal(text, &item)
	}
	if err == nil && (item.ID == "" || storeKey(item) != key) {
		err = fmt.Errorf("it is of %q", item.ID)
	}
	if err == nil {
		return item, nil
	}
	seq, id, _ := strings.Cut(key, "-")
	lost := Item{ID: id, Severity: finding.Warning, Lost: "lost", First: time.Now()}
	lost.Key, _, _ = strings.Cut(id, "-")
	if lost.Seq, _ = strconv.ParseUint(seq, 16, 64); lost.Seq == 0 || lost.Key == id || storeKey(lost) != key {
		lost = Item{} // not an item of a stream
	}
	return lost, err
}

func checksum(data []byte) string {
	return fmt.Sprintf("%08x", crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)))
}

// Start begins to write to the store; see WriteBehind.Start.
func (o *Outbox) Start(ctx context.Context) (stop func() error) { return o.behind.Start(ctx) }

// Add adds an item. It never blocks. It ignores a known ID.
func (o *Outbox) Add(item Item) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.add(item, true)
}

func (o *Outbox) add(item Item, fresh bool) {
	victims := o.queue.add(item)
	if added, ok := o.queue.items[item.ID]; ok {
		o.keep(added, fresh)
	}
	o.gaveUp(victims)
}

func (o *Outbox) gaveUp(victims []*Item) {
	for _, victim := range victims {
		if victim.Count > 0 {
			o.dropped[victim.Severity] += victim.Count
		}
		o.name(victim)
	}
}

// name stores that an item was given up, if the receiver must be told.
func (o *Outbox) name(victim *Item) {
	if left, ok := o.queue.items[victim.ID]; ok {
		o.keep(left, false)
	} else {
		o.behind.Delete(storeKey(*victim))
	}
}

// keep stores an item; fresh means that the store has no value under its key.
func (o *Outbox) keep(item *Item, fresh bool) {
	key, value := stored(*item)
	o.behind.put(key, value, fresh)
}

// stored returns the stored form of an item: a checksum and its JSON, with the body unchanged.
func stored(item Item) (key string, value []byte) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(item) // an item is plain data, and its Body was checked when it was made
	return storeKey(item), fmt.Appendf(nil, "%s %s", checksum(text.Bytes()), text.Bytes())
}

// Next returns the item to send, the oldest of the most severe, and whether there is one. The item stays until Remove.
func (o *Outbox) Next() (Item, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if item := o.queue.next(); item != nil {
		return *item, true
	}
	return Item{}, false
}

// Remove removes an item: it was sent, or never will be.
func (o *Outbox) Remove(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if item, ok := o.queue.items[id]; ok {
		o.queue.remove(id)
		o.behind.Delete(storeKey(*item))
	}
}

// Waiting returns how many items of a key wait to be sent, and a copy of the held one, nil if there is none.
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
	for _, item := range o.queue.sorted(byAge, func(i *Item) bool { return i.Held }) {
		held = append(held, *item)
	}
	return held
}

// Replace stores a changed item, if the item is still in the outbox.
func (o *Outbox) Replace(item Item) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.queue.items[item.ID]; ok {
		o.queue.put(&item)
		o.keep(&item, false)
	}
}

// Batch returns items of one stream to send, ordered by stream and then by age: at most count, and about size bytes.
// They stay until Remove.
func (o *Outbox) Batch(count, size int) (batch []Item) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, item := range o.queue.sorted(inStreams, func(i *Item) bool { return !i.Held && i.Lost == "" }) {
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
	if o.queue.lost > 0 {
		for _, item := range o.queue.sorted(inStreams, func(i *Item) bool { return i.Lost != "" }) {
			lost = append(lost, *item)
		}
	}
	return lost
}

// Expire gives up items older than a moment.
func (o *Outbox) Expire(before time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	old := o.queue.sorted(inStreams, func(i *Item) bool { return i.Lost == "" && i.First.Before(before) })
	for _, item := range old {
		o.queue.giveUp(item, "expired")
	}
	o.gaveUp(old)
}

// GiveUp gives up an item that will never be sent.
func (o *Outbox) GiveUp(id, why string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if item, ok := o.queue.items[id]; ok {
		o.queue.giveUp(item, why)
		o.name(item)
	}
}

// Counts are the sizes of an outbox.
type Counts struct{ Waiting, Held, Lost, Bytes int }

// Counts returns how many items wait, are held, and were given up and not yet removed.
func (o *Outbox) Counts() Counts {
	o.mu.Lock()
	defer o.mu.Unlock()
	q := &o.queue
	return Counts{len(q.items) - q.held - q.lost, q.held, q.lost, q.size}
}

// Has reports whether an ID is in the outbox.
func (o *Outbox) Has(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, ok := o.queue.items[id]
	return ok
}

// Len returns the number of items.
func (o *Outbox) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.queue.items)
}

// TakeDropped returns how many things were given up since the last call, by severity.
func (o *Outbox) TakeDropped() map[finding.Severity]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	dropped := o.dropped
	o.dropped = map[finding.Severity]int{}
	return dropped
}
