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
	ID       string           `json:"id"`  // stable: the same thing reported twice has the same ID
	Seq      uint64           `json:"seq"` // order of arrival, set by the queue
	Key      string           `json:"key"` // whose budget it takes from
	Severity finding.Severity `json:"severity"`
	Count    int              `json:"count"`          // how many things it stands for
	First    time.Time        `json:"first"`          // the first of them
	Last     time.Time        `json:"last"`           // the last of them
	Held     bool             `json:"held,omitempty"` // still aggregating, not to be sent yet
	Body     json.RawMessage  `json:"body"`           // the sink's own
}

// queue is a bounded queue that gives up the oldest of the least severe. It is pure.
type queue struct {
	limit int
	seq   uint64
	items map[string]*Item
}

// add puts an item in, and returns the item that had to be given up for it, if any (it may be the new one). An ID
// that is already in the queue is not added again.
func (q *queue) add(item Item) (victim *Item) {
	if _, ok := q.items[item.ID]; ok {
		return nil
	}
	if item.Seq == 0 {
		q.seq++
		item.Seq = q.seq
	}
	q.seq = max(q.seq, item.Seq)
	q.items[item.ID] = &item
	if len(q.items) <= q.limit {
		return nil
	}
	for _, other := range q.items {
		if victim == nil || expendable(other, victim) < 0 {
			victim = other
		}
	}
	delete(q.items, victim.ID)
	return victim
}

// next returns the item to send: the oldest of the most severe that is not held. Nil if there is none.
func (q *queue) next() *Item {
	var best *Item
	for _, item := range q.items {
		if !item.Held && (best == nil || urgent(item, best) < 0) {
			best = item
		}
	}
	return best
}

// waiting returns how many items of a key wait to be sent, and the one that is held, if any.
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

// held returns the held items, the oldest first.
func (q *queue) held() []*Item {
	var held []*Item
	for _, item := range q.items {
		if item.Held {
			held = append(held, item)
		}
	}
	slices.SortFunc(held, func(a, b *Item) int { return cmp.Compare(a.Seq, b.Seq) })
	return held
}

func severityRank(s finding.Severity) int {
	return slices.Index([]finding.Severity{finding.Info, finding.Warning, finding.Fatal}, s)
}

func expendable(a, b *Item) int {
	return cmp.Or(cmp.Compare(severityRank(a.Severity), severityRank(b.Severity)), cmp.Compare(a.Seq, b.Seq))
}

func urgent(a, b *Item) int {
	return cmp.Or(-cmp.Compare(severityRank(a.Severity), severityRank(b.Severity)), cmp.Compare(a.Seq, b.Seq))
}
