package sqlite

import (
	"bytes"
	"slices"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// tailBytes bounds the JSON of the newest records that are kept in memory. Beyond it the older half is dropped.
const tailBytes = 4 << 20

// tail has the newest records, without a gap: reports, subscriptions and streams follow the journal, and would
// otherwise reread records that were in memory a moment ago. Store.mu guards it.
type tail struct {
	records []journal.Record
	bytes   int
}

// add adds new records. It copies their JSON, so that request bodies are freed.
func (t *tail) add(records []journal.Record) {
	for _, r := range records {
		if n := len(t.records); n > 0 && t.records[n-1].Offset+1 != r.Offset {
			*t = tail{}
		}
		r.JSON = bytes.Clone(r.JSON)
		t.records, t.bytes = append(t.records, r), t.bytes+len(r.JSON)
	}
	if t.bytes <= tailBytes {
		return
	}
	drop := 0
	for t.bytes > tailBytes/2 {
		t.bytes -= len(t.records[drop].JSON)
		drop++
	}
	t.records = slices.Delete(t.records, 0, drop)
}

// read answers a query that begins within the tail.
func (t *tail) read(q journal.Query) (page journal.Page, ok bool) {
	if len(t.records) == 0 || q.After+1 < t.records[0].Offset {
		return page, false
	}
	newest := t.records[len(t.records)-1].Offset
	if page.Next = newest; q.After >= newest {
		page.Next = q.After
		return page, true
	}
	for _, r := range t.records[q.After+1-t.records[0].Offset:] {
		if !wanted(q.Filter, r) {
			continue
		}
		page.Records, page.Bytes = append(page.Records, r), page.Bytes+len(r.JSON)
		if len(page.Records) >= q.Limit || page.Bytes > pageBytes {
			page.Next = r.Offset
			break
		}
	}
	return page, true
}

// wanted reports whether a filter accepts a record.
func wanted(f journal.Filter, r journal.Record) bool {
	for field, values := range f {
		if len(values) > 0 && !slices.Contains(values, valueOf(field, r)) {
			return false
		}
	}
	return true
}

func valueOf(field journal.Field, r journal.Record) string {
	switch field {
	case journal.Cluster:
		return r.Cluster
	case journal.Node:
		return r.Node
	case journal.Type:
		return r.Type
	case journal.Severity:
		return r.Severity
	case journal.Check:
		return r.Check
	case journal.Reason:
		return r.Reason
	}
	return ""
}
