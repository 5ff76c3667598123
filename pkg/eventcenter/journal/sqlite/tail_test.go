package sqlite

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// The tail returns the same records as the files, for any start and filter; records older than the tail come from the
// files.
func TestTail(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{})
	var events []journal.Event
	for i := range uint64(40) {
		e := of(fmt.Sprintf("node-%d", i%3), i/3+1)
		e.Severity = []string{"info", "fatal"}[i%2]
		events = append(events, e)
	}
	s.mustAppend(t, events[:30]...)
	s.mustAppend(t, events[30:]...)
	whole := s.tail
	if len(whole.records) != 40 {
		t.Fatalf("%d records are in the tail", len(whole.records))
	}
	set := func(of tail) { s.mu.Lock(); s.tail = of; s.mu.Unlock() }
	for _, filter := range []journal.Filter{nil, {}, {journal.Node: {"node-1"}}, {journal.Node: {"node-1", "node-2"},
		journal.Severity: {"fatal"}}, {journal.Cluster: {"none"}}, {journal.Type: nil}} {
		for _, limit := range []int{1, 7, 1000} {
			for _, after := range []uint64{0, 1, 19, 20, 21, 39, 40, 41, 1 << 63, 1<<64 - 2} {
				q := journal.Query{After: after, Limit: limit, Filter: filter}
				set(tail{})
				want, err := s.Read(t.Context(), q)
				if err != nil {
					t.Fatal(err)
				}
				for _, held := range []tail{whole, {records: whole.records[20:]}} {
					set(held)
					got, err := s.Read(t.Context(), q)
					if diff := cmp.Diff(want, got); diff != "" || err != nil {
						t.Errorf("%d after %d, %v, %d in the tail: %v: %s", limit, after, filter, len(held.records), err, diff)
					}
				}
			}
		}
	}
}

// The tail is bounded, has the newest records, and does not keep request bodies in memory.
func TestTailIsBounded(t *testing.T) {
	var held tail
	body := []byte(strings.Repeat("x", tailBytes/10))
	for offset := range uint64(25) {
		held.add([]journal.Record{{Offset: offset + 1, Event: journal.Event{JSON: body[:len(body):len(body)]}}})
		if held.bytes > tailBytes || held.records[len(held.records)-1].Offset != offset+1 {
			t.Fatalf("%d bytes up to %d", held.bytes, held.records[len(held.records)-1].Offset)
		}
	}
	body[0] = 'y'
	if held.records[len(held.records)-1].JSON[0] != 'x' || len(held.records) < 5 {
		t.Errorf("%d records; the body is kept", len(held.records))
	}
	held.add([]journal.Record{{Offset: 100}})
	if len(held.records) != 1 {
		t.Errorf("%d records with a gap between them", len(held.records))
	}
}
