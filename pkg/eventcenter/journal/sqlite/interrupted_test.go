package sqlite

import (
	"context"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
)

// A reader that goes away in the middle of a page leaves no gap behind.
func TestInterruptedReadIsNoGap(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{})
	journaltest.Append(t, s, many(1, 2000)...)
	filter := journal.Filter{journal.Node: {"a"}}
	for i := range 2000 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Microsecond)
		q := journal.Query{Limit: 1000, Backward: i%2 == 0}
		if i%4 > 1 {
			q.Filter = filter
		}
		page, err := s.Read(ctx, q)
		cancel()
		if err == nil && len(page.Records) == 0 {
			t.Fatalf("%v: no error, and no records", q)
		}
	}
	if h := s.Health(); len(h.Gaps) > 0 {
		t.Errorf("gaps %v", h.Gaps)
	}
}
