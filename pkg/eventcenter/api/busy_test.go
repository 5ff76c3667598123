package api_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// hungJournal blocks in the first Append, and counts the concurrent ones.
type hungJournal struct {
	journal.Journal
	held, over chan struct{}
	calls      atomic.Int32
}

// beside returns how many Appends came during the first.
func (j *hungJournal) beside() int32 { return j.calls.Load() - 1 }

func (j *hungJournal) Append(ctx context.Context, events []journal.Event) (journal.Appended, error) {
	if j.calls.Add(1) == 1 {
		close(j.held)
		<-j.over
	}
	return j.Journal.Append(ctx, events)
}

// If more arrives than can be stored, the center works on a limited amount; other senders are asked to retry before
// they time out, so that no work is wasted.
func TestBusy(t *testing.T) {
	t.Parallel()
	j := &hungJournal{held: make(chan struct{}), over: make(chan struct{})}
	c := newCenter(t, func(config *api.Config) {
		j.Journal, config.Journal, config.Limits = config.Journal, j, api.Limits{Bytes: 64 << 10}
	})
	testBusy(t, c, j)
}

func testBusy(t *testing.T, c *center, j *hungJournal) {
	first := make(chan int)
	go func() {
		r, _ := c.post(batch, encode(t, raised("a", 1, "x", "fatal")))
		first <- r.StatusCode
	}()
	<-j.held
	r, answer := c.post(batch, encode(t, raised("b", 1, "x", "fatal")))
	if r.StatusCode != 429 || r.Header.Get("Retry-After") == "" || j.beside() != 0 {
		t.Errorf("%d, Retry-After %q, %d are stored beside: %s", r.StatusCode, r.Header.Get("Retry-After"), j.beside(),
			answer)
	}
	close(j.over)
	if status := <-first; status != 200 {
		t.Errorf("the first: %d", status)
	}
	if r, answer := c.post(batch, encode(t, raised("b", 1, "x", "fatal"))); r.StatusCode != 200 {
		t.Errorf("again: %d %s", r.StatusCode, answer)
	}
	if newest := c.Journal.Bounds().Newest; newest != 2 {
		t.Errorf("%d events are stored", newest)
	}
}
