package eventcenter

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// detects appends a detector's fault that ends after a minute without a report.
func (c *Center) detects(t *testing.T) {
	t.Helper()
	e := journal.Event{Source: "/clusters/c/nodes/n/gpud", ID: fmt.Sprint(time.Now().UnixNano()),
		Type: string(event.FaultRaised), Cluster: "c", Node: "n"}
	e.JSON = fmt.Appendf(nil, `{"time":%q,"data":{"check":"gpu","reason":"Xid","severity":"fatal","ttlSeconds":60,
		"subject":{"kind":"gpu","name":"0"}}}`, time.Now().UTC().Format(time.RFC3339))
	if _, err := c.Journal.Append(t.Context(), []journal.Event{e}); err != nil {
		t.Fatal(err)
	}
}

// expiring ends expired faults in the background until stop is called.
func (c *Center) expiring(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { c.Expire(ctx, c.Journal.Append) })
	return func() { cancel(); running.Wait() }
}

func (c *Center) closed(t *testing.T) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// A center that was away does not end the fault of a detector that could not report meanwhile: the detector has its
// full time to live, at most an hour, from when the center is back. Then a silent detector's fault ends.
func TestDetectorWhileAway(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c, _ := open(t, dir, journal.Limits{})
		c.detects(t)
		c.closed(t)
		time.Sleep(62 * time.Second)
		c, _ = open(t, dir, journal.Limits{})
		defer c.closed(t)
		defer c.expiring(t)()
		time.Sleep(50 * time.Second)
		if n := c.faults(); n != 1 {
			t.Errorf("%d faults before the detector could report", n)
		}
		c.detects(t)
		time.Sleep(50 * time.Second)
		if n := c.faults(); n != 1 {
			t.Errorf("%d faults after the detector has reported", n)
		}
		time.Sleep(20 * time.Second)
		if n := c.faults(); n != 0 {
			t.Errorf("%d faults of a silent detector", n)
		}
	})
}

// A clock that jumps ahead is logged, and ends no fault at once.
func TestClockJump(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var ahead atomic.Int64
		c, log := open(t, dir, journal.Limits{})
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		defer c.closed(t)
		defer c.expiring(t)()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Run(ctx) }()
		c.detects(t)
		time.Sleep(15 * time.Second)
		ahead.Store(int64(24 * time.Hour))
		time.Sleep(30 * time.Second)
		if n := c.faults(); n != 1 {
			t.Errorf("%d faults", n)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if !strings.Contains(log.String(), "jumped") || !strings.Contains(log.String(), "24h0m0s") {
			t.Errorf("the log does not tell: %s", log)
		}
	})
}
