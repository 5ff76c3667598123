// Package journaltest is the test suite for all journals of the event center.
package journaltest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// Journal is a journal.
type Journal interface {
	journal.Journal
	Health() journal.Health
	Expired(l journal.Limits) uint64
	Trim(ctx context.Context, upTo uint64) error
	Seal(ctx context.Context) error
	Close() error
}

// Options are the options to open a journal with.
type Options struct {
	Now      func() time.Time
	Appended func([]journal.Record) []journal.Event
}

// Opener opens a journal: the same one each time.
type Opener func(t *testing.T, o Options) Journal

// Run runs the tests. Each requests its own opener, which begins with an empty journal.
func Run(t *testing.T, opener func(t *testing.T) Opener) {
	for name, test := range map[string]func(*testing.T, Opener){
		"AppendAndRead": appendAndRead, "Duplicates": duplicates, "Trim": trim, "Derived": derived,
		"Together": together, "Whole": whole, "ClockBack": clockBack, "Backward": backward,
	} {
		t.Run(name, func(t *testing.T) {
			open := opener(t)
			test(t, func(t *testing.T, o Options) Journal {
				t.Helper()
				j := &once{Journal: open(t, o)}
				t.Cleanup(func() { closed(t, j) })
				return j
			})
		})
	}
}

// Lost returns the number of offsets in the gaps of a journal, and fails if they exceed its bounds.
func Lost(t *testing.T, j interface {
	Bounds() journal.Bounds
	Health() journal.Health
}) (lost uint64) {
	t.Helper()
	gaps, newest := j.Health().Gaps, j.Bounds().Newest
	for _, g := range gaps {
		lost += g.To - g.From + 1
	}
	if len(gaps) > 0 || lost > newest {
		t.Errorf("%d of %d events are lost: %v", lost, newest, gaps)
	}
	return lost
}

// once can be closed several times.
type once struct {
	Journal
	closed sync.Once
	err    error
}

// Close closes the journal the first time.
func (j *once) Close() error {
	j.closed.Do(func() { j.err = j.Journal.Close() })
	return j.err
}

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

// Texts reads and returns each record as "offset node/sequence", and the gaps.
func Texts(t *testing.T, j Journal, q journal.Query) (found []string) {
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
func Expect(t *testing.T, j Journal, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, Texts(t, j, journal.Query{})); diff != "" {
		t.Error(diff)
	}
}

func closed(t *testing.T, j Journal) {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

func appendAndRead(t *testing.T, open Opener) {
	j := open(t, Options{})
	bounds := j.Bounds()
	got := Append(t, j, Of("a", 2), Of("b", 1), Of("a", 1)) // sorted by sequence
	if diff := cmp.Diff(journal.Appended{Last: 3, New: 3}, got); diff != "" {
		t.Error(diff)
	}
	select {
	case <-bounds.Changed:
	default:
		t.Error("nobody is told of what was appended")
	}
	foreign := journal.Event{Source: "urn:x", ID: "1", Type: "x", JSON: []byte(`{"a":"<1> ` + "\u2028" + `"}`)}
	Append(t, j, foreign)
	Expect(t, j, "1 a/1", "2 b/1", "3 a/2", "4 /0")
	for _, test := range []struct {
		q    journal.Query
		want []string
	}{
		{journal.Query{After: 2}, []string{"3 a/2", "4 /0"}},
		{journal.Query{Limit: 1}, []string{"1 a/1"}},
		{journal.Query{Filter: journal.Filter{journal.Node: {"a"}}}, []string{"1 a/1", "3 a/2"}},
		{journal.Query{Filter: journal.Filter{journal.Type: {"x", "y"}}}, []string{"4 /0"}},
		{journal.Query{Filter: journal.Filter{journal.Check: {"dns"}, journal.Node: {"b"}}}, []string{"2 b/1"}},
		{journal.Query{Filter: journal.Filter{journal.Cluster: {"c"}}, Backward: true, Limit: 2},
			[]string{"3 a/2", "2 b/1"}},
		{journal.Query{Filter: journal.Filter{journal.Reason: {`" OR 1=1 --`}}}, nil},
	} {
		if diff := cmp.Diff(test.want, Texts(t, j, test.q)); diff != "" {
			t.Errorf("%+v: %s", test.q, diff)
		}
	}
	page, err := j.Read(t.Context(), journal.Query{Filter: journal.Filter{journal.Type: {"none"}}, Limit: 9})
	if err != nil || page.Next != 4 {
		t.Errorf("next %d, %v: it is to move past what the filter left out", page.Next, err)
	}
	closed(t, j)
	j = open(t, Options{})
	Expect(t, j, "1 a/1", "2 b/1", "3 a/2", "4 /0")
	page, err = j.Read(t.Context(), journal.Query{After: 3, Limit: 1})
	if err != nil || string(page.Records[0].JSON) != string(foreign.JSON) {
		t.Errorf("%s was stored as %s: %v", foreign.JSON, page.Records[0].JSON, err)
	}
	if j.Bounds().Journal != bounds.Journal || j.Bounds().Newest != 4 {
		t.Errorf("after a restart: %+v, before %+v", j.Bounds(), bounds)
	}
}

// A known event is not stored again, even after a restart or on another day; a late event is not a duplicate.
func duplicates(t *testing.T, open Opener) {
	c := NewClock()
	j := open(t, Options{Now: c.Now})
	foreign := journal.Event{Source: "urn:x", ID: "1", JSON: []byte(`{"a":1}`)}
	Append(t, j, Of("a", 1), Of("a", 5), foreign)
	for range 2 {
		changed := Of("a", 5)
		changed.JSON = []byte(`{"other":true}`)
		got := Append(t, j, Of("a", 1), changed, foreign, foreign)
		if diff := cmp.Diff(journal.Appended{Last: 3, Duplicates: 4, Conflicts: 1}, got); diff != "" {
			t.Error(diff)
		}
		closed(t, j)
		c.Add(24 * time.Hour)
		j = open(t, Options{Now: c.Now})
	}
	got := Append(t, j, Of("a", 3), Of("a", 3), Of("a", 6))
	if diff := cmp.Diff(journal.Appended{Last: 5, New: 2, Duplicates: 1}, got); diff != "" {
		t.Error(diff)
	}
	Expect(t, j, "1 a/1", "2 a/5", "3 /0", "4 a/3", "5 a/6")
}

// Trimming drops whole days, never the newest; a read of dropped offsets fails, it does not skip them.
func trim(t *testing.T, open Opener) {
	c := NewClock()
	j := open(t, Options{Now: c.Now})
	for day := range uint64(4) {
		Append(t, j, Of("a", 2*day+1), Of("a", 2*day+2))
		c.Add(24 * time.Hour)
	}
	if err := j.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	Expect(t, j, "1 a/1", "2 a/2", "3 a/3", "4 a/4", "5 a/5", "6 a/6", "7 a/7", "8 a/8")
	if got := j.Expired(journal.Limits{Age: 49 * time.Hour}); got != 4 {
		t.Errorf("two days of four are too old: trim up to %d, want 4", got)
	}
	if got := j.Expired(journal.Limits{Bytes: 1}); got != 6 {
		t.Errorf("only the newest is kept in any case: trim up to %d, want 6", got)
	}
	if err := j.Trim(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	Expect(t, j, "5 a/5", "6 a/6", "7 a/7", "8 a/8")
	_, err := j.Read(t.Context(), journal.Query{After: 2, Limit: 1})
	if trimmed, ok := errors.AsType[*journal.TrimmedError](err); !ok || trimmed.Oldest != 5 {
		t.Errorf("a read from what is gone: %v", err)
	}
	if got := Append(t, j, Of("a", 8)); got.Duplicates != 1 {
		t.Errorf("a duplicate of another day: %+v", got)
	}
	closed(t, j)
	j = open(t, Options{Now: c.Now})
	Append(t, j, Of("a", 9))
	Expect(t, j, "5 a/5", "6 a/6", "7 a/7", "8 a/8", "9 a/9")
}

// Derived events are appended directly behind their causes.
func derived(t *testing.T, open Opener) {
	j := open(t, Options{Appended: func(records []journal.Record) (derived []journal.Event) {
		for _, r := range records {
			if r.Sequence == 2 {
				derived = append(derived, journal.Event{Source: "/clusters/c/eventcenter", ID: r.ID, JSON: []byte("{}")})
			}
		}
		return derived
	}})
	Append(t, j, Of("a", 1), Of("a", 2), Of("a", 3))
	Append(t, j, Of("a", 4))
	Expect(t, j, "1 a/1", "2 a/2", "3 a/3", "4 /0", "5 a/4")
}

// With concurrent appends, each event is stored once, and offsets have no holes.
func together(t *testing.T, open Opener) {
	j := open(t, Options{})
	const nodes, each = 20, 10
	var senders sync.WaitGroup
	for n := range nodes {
		senders.Go(func() {
			for i := range uint64(each) {
				for range 2 { // and again
					if _, err := j.Append(t.Context(), []journal.Event{Of(fmt.Sprint(n), i+1)}); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	senders.Wait()
	page, err := j.Read(t.Context(), journal.Query{Limit: 1000})
	if err != nil || len(page.Records) != nodes*each || len(page.Gaps) > 0 {
		t.Fatalf("%d records of %d, gaps %v: %v", len(page.Records), nodes*each, page.Gaps, err)
	}
	for i, r := range page.Records {
		if r.Offset != uint64(i)+1 {
			t.Fatalf("offset %d in place %d", r.Offset, i+1)
		}
	}
}

// A batch of the largest size is stored whole.
func whole(t *testing.T, open Opener) {
	j := open(t, Options{})
	var batch []journal.Event
	for i := range uint64(1000) {
		e := Of("a", i+1)
		e.JSON = fmt.Appendf(nil, `{"n":%d,"pad":"%08000d"}`, i, 0)
		batch = append(batch, e)
	}
	if got := Append(t, j, batch...); got.New != 1000 || got.Last != 1000 {
		t.Errorf("%+v", got)
	}
}

// If the clock is put back, no event is stored in an earlier day.
func clockBack(t *testing.T, open Opener) {
	c := NewClock()
	j := open(t, Options{Now: c.Now})
	Append(t, j, Of("a", 1))
	c.Add(-48 * time.Hour)
	Append(t, j, Of("a", 2))
	c.Add(72 * time.Hour)
	Append(t, j, Of("a", 3))
	Expect(t, j, "1 a/1", "2 a/2", "3 a/3")
	closed(t, j)
	j = open(t, Options{Now: c.Now})
	Expect(t, j, "1 a/1", "2 a/2", "3 a/3")
}

// A read in either direction, of any part, with or without a filter, finds all records of a sound journal, and no gap.
func backward(t *testing.T, open Opener) {
	c := NewClock()
	j := open(t, Options{Now: c.Now})
	const days, each = 3, 7
	for day := range uint64(days) {
		for i := range uint64(each) {
			Append(t, j, Of([]string{"a", "b"}[i%2], day*each+i+1))
		}
		c.Add(24 * time.Hour)
	}
	for range 2 {
		for _, filter := range []journal.Filter{nil, {journal.Node: {"a"}}, {journal.Severity: {"info"}}, {journal.Node: {"none"}}} {
			for _, before := range []uint64{0, 1, 2, each, each + 1, 2*each + 2, days * each, days*each + 1, 1 << 62} {
				for _, limit := range []int{1, 3, 100} {
					forward := Texts(t, j, journal.Query{Filter: filter})
					want := slices.DeleteFunc(forward, func(text string) bool {
						var offset uint64
						_, _ = fmt.Sscan(text, &offset)
						return before > 0 && offset >= before
					})
					slices.Reverse(want)
					want = want[:min(limit, len(want))]
					got := Texts(t, j, journal.Query{After: before, Limit: limit, Filter: filter, Backward: true})
					if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
						t.Errorf("%v before %d: %s", filter, before, diff)
					}
				}
			}
		}
		Lost(t, j)
		closed(t, j)
		j = open(t, Options{Now: c.Now})
	}
}
