package report

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Item is one thing for an edge sink to report.
type Item struct {
	ID       string           `json:"id"`  // stable: a repeated report has the same ID
	Seq      uint64           `json:"seq"` // order of arrival; the queue sets it if it is 0
	Key      string           `json:"key"` // whose budget it uses, or the stream it belongs to
	Severity finding.Severity `json:"severity"`
	Count    int              `json:"count"`          // how many things it stands for
	First    time.Time        `json:"first"`          // the first of them
	Last     time.Time        `json:"last"`           // the last of them
	Held     bool             `json:"held,omitempty"` // not to be sent: still aggregating, or quarantined
	Lost     string           `json:"lost,omitempty"` // why it was given up; the body is removed
	Body     json.RawMessage  `json:"body"`           // the sink's own
}

// queue is a bounded queue that gives up the oldest of the least severe. It is pure.
type queue struct {
	limit int // items; 0: any number
	bytes int // limit of size; 0: any number
	named bool

	seq   uint64
	items map[string]*Item
	size  int // of all bodies
	held  int // items that are held
	lost  int // items that were given up
}

// put adds an item, or replaces the one with its ID.
func (q *queue) put(item *Item) {
	q.remove(item.ID)
	q.items[item.ID] = item
	q.count(item, 1)
}

func (q *queue) remove(id string) {
	if item, ok := q.items[id]; ok {
		delete(q.items, id)
		q.count(item, -1)
	}
}

func (q *queue) count(item *Item, n int) {
	q.size += n * len(item.Body)
	switch {
	case item.Lost != "":
		q.lost += n
	case item.Held:
		q.held += n
	}
}

// add adds an item, and returns the items given up for it (it may be among them). It ignores a known ID.
func (q *queue) add(item Item) (victims []*Item) {
	if _, ok := q.items[item.ID]; ok {
		return nil
	}
	if item.Seq == 0 {
		q.seq++
		item.Seq = q.seq
	}
	q.seq = max(q.seq, item.Seq)
	q.put(&item)
	return q.shed()
}

// shed gives items up until the limits hold. For the limit of bytes it frees more than needed, since it sorts all
// items.
func (q *queue) shed() (victims []*Item) {
	tooMany, tooLarge := q.limit > 0 && len(q.items) > q.limit, q.bytes > 0 && q.size > q.bytes
	if !tooMany && !tooLarge {
		return nil
	}
	for _, item := range q.sorted(expendable, func(i *Item) bool { return i.Lost == "" }) {
		if (q.limit == 0 || len(q.items) <= q.limit) && (!tooLarge || q.size <= q.bytes*7/8) {
			break
		}
		victims = append(victims, item)
		q.giveUp(item, "dropped")
	}
	return victims
}

// giveUp removes an item. In an outbox of streams an item that was to be sent stays under its name, without its body.
func (q *queue) giveUp(item *Item, why string) {
	q.remove(item.ID)
	if q.named && !item.Held {
		q.put(&Item{ID: item.ID, Seq: item.Seq, Key: item.Key, Severity: item.Severity, First: item.First, Lost: why})
	}
}

// sorted returns the items that match is.
func (q *queue) sorted(compare func(a, b *Item) int, is func(*Item) bool) (items []*Item) {
	for _, item := range q.items {
		if is(item) {
			items = append(items, item)
		}
	}
	slices.SortFunc(items, compare)
	return items
}

// next returns the item to send: the oldest of the most severe that is not held; nil if there is none.
func (q *queue) next() *Item {
	var best *Item
	for _, item := range q.items {
		if !item.Held && (best == nil || urgent(item, best) < 0) {
			best = item
		}
	}
	return best
}

// waiting returns how many items of a key wait to be sent, and the held one, if any.
func (q *queue) waiting(key string) (n int, held *Item) {
	for _, item := range q.items {
		switch {
		case item.Key != key:
		case item.Held:
			held = item
		default:
			n++
		}
	}
	return n, held
}

func byAge(a, b *Item) int { return cmp.Compare(a.Seq, b.Seq) }

// inStreams orders items by stream, and by age in each.
func inStreams(a, b *Item) int { return cmp.Or(cmp.Compare(a.Key, b.Key), byAge(a, b)) }

func expendable(a, b *Item) int {
	return cmp.Or(b.Severity.Compare(a.Severity), cmp.Compare(a.First.Unix(), b.First.Unix()), byAge(a, b))
}

func urgent(a, b *Item) int {
	return cmp.Or(a.Severity.Compare(b.Severity), byAge(a, b))
}
