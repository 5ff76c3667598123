// Package journaltest has the events and the clock of journals' tests.
package journaltest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// Clock is the center's clock in a test.
type Clock struct {
	mu  sync.Mutex // guards the fields below
	now time.Time
}

// NewClock returns a clock that moves only by Add.
func NewClock() *Clock { return &Clock{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }

// Now returns the time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Add moves the clock forward or back.
func (c *Clock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

const stream = "01J9ZZZZZZZZZZZZZZZZZZZZZZ"

// Of returns an event of a node's agent.
func Of(node string, sequence uint64) journal.Event {
	source := "/clusters/c/nodes/" + node
	return journal.Event{Source: source, ID: fmt.Sprintf("%s-%020d", stream, sequence), Type: "t", Cluster: "c",
		Node: node, Severity: "info", Check: "dns", Reason: "Slow", Stream: stream, Sequence: sequence,
		JSON: fmt.Appendf(nil, `{"source":%q,"n":%d}`, source, sequence)}
}

// Append appends.
func Append(t *testing.T, j interface {
	Append(ctx context.Context, events []journal.Event) (journal.Appended, error)
}, events ...journal.Event) journal.Appended {
	t.Helper()
	done, err := j.Append(t.Context(), events)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// All reads all records and gaps, page by page.
func All(t *testing.T, j journal.Reader, q journal.Query) (records []journal.Record, gaps []journal.Gap) {
	t.Helper()
	for q.Limit = 700; ; {
		page, err := j.Read(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		records, gaps = append(records, page.Records...), append(gaps, page.Gaps...)
		if q.After = page.Next; q.Backward && len(page.Records) == 0 || !q.Backward && page.Next >= j.Bounds().Newest {
			return records, gaps
		}
	}
}

// Texts reads and returns each record as "offset node/sequence", and the gaps.
func Texts(t *testing.T, j journal.Reader, q journal.Query) (found []string) {
	t.Helper()
	if q.Limit == 0 {
		q.Limit = 1000
	}
	page, err := j.Read(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range page.Records {
		found = append(found, fmt.Sprintf("%d %s/%d", r.Offset, r.Node, r.Sequence))
	}
	for _, g := range page.Gaps {
		found = append(found, fmt.Sprintf("gap %d-%d", g.From, g.To))
	}
	return found
}

// Expect compares the whole journal with the expected records.
func Expect(t *testing.T, j journal.Reader, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, Texts(t, j, journal.Query{})); diff != "" {
		t.Error(diff)
	}
}

// Patience is a limit for conditions that hold at once on an idle machine.
const Patience = 5 * time.Minute

// Eventually waits until a condition holds.
func Eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not in time", what)
		}
	}
}
