package deliver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/expression"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/web/control"
)

const (
	pageEvents = 200         // in memory at a time, at most
	batchBytes = 512 << 10   // of the events in a request; a single larger event is possible
	parallel   = 4           // nodes that are sent to a target at the same time
	downAfter  = 3           // nodes in a row whose events fail: then the target itself is down
	saveEvery  = time.Second // if only the cursor moves; after a crash, events delivered since then are delivered again
	coalesce   = 20 * time.Millisecond
	idleWait   = time.Minute
)

// subscription is a running subscription.
type subscription struct {
	Subscription
	m          *Manager
	wanted     *expression.Expression // nil: everything
	configured bool                   // in the operator's settings
	registered *Registration          // nil if it is configured
	broken     bool                   // it is invalid: see problem
	client     http.RoundTripper
	stop       chan struct{} // closed when it is removed
	wake       chan struct{} // size 1: another goroutine has changed the subscription
	retryNow   chan struct{} // size 1: a node or event was added to the held ones

	asking sync.Mutex // held while asking the target by OPTIONS
	saving sync.Mutex // held while writing or removing the state
	tried  []byte     // the state of the last attempt to write it; guarded by saving

	mu       sync.Mutex // guards the fields below
	state    state
	revision uint64 // of the state in the store; 0: not stored
	dirty    bool
	saved    time.Time
	claimed  uint64 // end of the page in delivery
	begun    int    // how often a user has set the cursor: an older page must not move it
	fresh    map[string]bool
	failures int       // in a row, while the target is down
	closed   time.Time // no event is sent before
	limiter  *rate.Limiter
	behind   time.Time // when the oldest pending event was received; zero: none is pending
	problem  string    // why no event can be sent; empty: no problem
	letters  []string  // the IDs of its dead letters, oldest first
	counts   Counts
}

// newSubscription returns a subscription that can be listed and removed even if it is not valid.
func newSubscription(m *Manager, one Subscription, configured bool) (s *subscription, err error) {
	s = &subscription{Subscription: one, m: m, configured: configured, client: m.Transport,
		stop: make(chan struct{}), wake: make(chan struct{}, 1), retryNow: make(chan struct{}, 1), fresh: map[string]bool{}}
	if s.wanted, err = m.Settings.check(one); err != nil {
		return s, err
	}
	if s.client == nil {
		t, err := m.Settings.target(one.URL)
		if err != nil {
			return s, err
		}
		s.client = t.transport(m.Resolver)
		if one.toNATS() {
			s.client = &natsClient{target: t, resolver: m.Resolver}
		}
	}
	return s, nil
}

// run delivers until ctx ends or the subscription is removed.
func (s *subscription) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.removed() {
		return
	}
	s.save(ctx, true) // keeps the start offset even if the subscription never delivers anything
	var all sync.WaitGroup
	all.Go(func() {
		select {
		case <-s.stop:
			cancel()
		case <-ctx.Done():
		}
	})
	all.Go(func() { s.retry(ctx) })
	s.follow(ctx)
	all.Wait()
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	s.save(limited, true)
	if c, ok := s.client.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func (s *subscription) removed() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

// load takes the state from its record, or creates it if the record is empty.
func (s *subscription) load(record control.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state, s.revision = state{}, record.Revision
	bounds := s.m.Journal.Bounds()
	if s.revision == 0 {
		after, _ := s.after()
		if s.After == "" {
			after = bounds.Newest
		}
		s.state = state{Journal: bounds.Journal, Cursor: min(s.m.positionAfter(after), bounds.Newest)}
	} else if err := json.Unmarshal(record.Value, &s.state); err != nil {
		return fmt.Errorf("state of subscription %s: %w", s.Name, err)
	}
	if of := string(s.mode()) + " " + s.URL; s.state.Of != of {
		s.state.Of, s.state.Mode, s.state.Granted = of, s.mode(), time.Time{}
	}
	if s.state.NoBatches.After(time.Now().Add(noBatchesFor)) { // the clock was set back
		s.state.NoBatches = time.Time{}
	}
	s.dirty = s.revision == 0
	if s.state.Journal != bounds.Journal { // no events were appended since the journal was restored
		s.state.Cursor = min(s.state.Cursor, bounds.Newest)
		s.state.Journal, s.dirty = bounds.Journal, true
		s.hold(s.gap(journal.Gap{From: s.state.Cursor, To: s.state.Cursor, Reason: "the journal was replaced: what came " +
			"after its backup is gone"}, held{}))
		for _, h := range s.state.Held {
			h.After = min(h.After, s.state.Cursor)
		}
	}
	s.claimed = s.state.Cursor
	return nil
}

// save writes the state, unless the subscription is removed. Without force it does so only every saveEvery: a crash in
// between causes duplicate deliveries.
func (s *subscription) save(ctx context.Context, force bool) bool {
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	if s.removed() || !s.dirty || !force && time.Since(s.saved) < saveEvery {
		s.mu.Unlock()
		return true
	}
	value, err := json.Marshal(s.state)
	revision := s.revision
	s.dirty, s.saved = false, time.Now()
	s.mu.Unlock()
	if err == nil {
		revision, err = s.put(ctx, value, revision)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.dirty = true
		if errors.Is(ctx.Err(), context.Canceled) { // the client has gone; or the center stops, and run tries again
			return false
		}
		s.m.Log.Error("write the position of a subscription failed: going on, a restart delivers some events again",
			"subscription", s.Name, "err", err)
		return false
	}
	s.revision = revision
	return true
}

// put writes the state over the one of this revision, or over that of the last attempt, whose answer may have been lost.
// A state that another worker has written stays. It needs saving.
func (s *subscription) put(ctx context.Context, value []byte, revision uint64) (uint64, error) {
	last := s.tried
	s.tried = value
	next, err := s.m.Store.Put(ctx, cursors, s.Name, value, revision)
	if !errors.Is(err, control.ErrConflict) {
		return next, err
	}
	s.tried = last
	stored, failed := s.m.Store.Get(ctx, cursors, s.Name)
	if failed != nil || !bytes.Equal(stored.Value, last) {
		return 0, err
	}
	s.tried = value
	return s.m.Store.Put(ctx, cursors, s.Name, value, stored.Revision)
}

// follow delivers new events, page by page.
func (s *subscription) follow(ctx context.Context) {
	for ctx.Err() == nil {
		bounds := s.m.Journal.Bounds()
		cursor, paused, dirty := s.at()
		s.save(ctx, false)
		if paused || cursor >= bounds.Newest {
			pause, changed := idleWait, bounds.Changed
			if dirty {
				pause = saveEvery
			}
			if paused {
				changed = nil
			}
			if wait(ctx, pause, changed, s.wake) && !paused {
				wait(ctx, coalesce, nil, s.wake)
			}
			continue
		}
		if err := s.page(ctx, cursor); err != nil && ctx.Err() == nil {
			s.m.Log.Error("read the journal for a subscription failed", "subscription", s.Name, "err", err)
			wait(ctx, backoff(6), nil, s.wake)
		}
	}
}

func (s *subscription) at() (cursor uint64, paused, dirty bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.Cursor >= s.m.Journal.Bounds().Newest {
		s.behind = time.Time{}
	} else if s.behind.IsZero() {
		s.behind = time.Now() // an estimate, until the event is read: the subscription may be paused
	}
	return s.state.Cursor, s.state.Paused != "", s.dirty
}

// wait waits for a duration, and reports whether a channel has woken it earlier.
func wait(ctx context.Context, d time.Duration, one, other <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-one:
		return true
	case <-other:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// lane holds the events of one node in a page.
type lane struct {
	held
	records []journal.Record
}

// page delivers or holds the next events, and moves the cursor.
func (s *subscription) page(ctx context.Context, cursor uint64) error {
	page, err := s.m.read(ctx, journal.Query{After: cursor, Limit: pageEvents, Filter: s.Filter})
	if trimmed, ok := errors.AsType[*journal.TrimmedError](err); ok {
		page = journal.Page{Next: trimmed.Oldest - 1, Gaps: []journal.Gap{{From: cursor + 1, To: trimmed.Oldest - 1,
			Reason: "older than what is kept"}}}
	} else if err != nil {
		return err
	}
	s.mu.Lock()
	if s.state.Cursor != cursor { // a user has set it
		s.mu.Unlock()
		return nil
	}
	begun := s.begun
	s.claimed = page.Next
	if len(page.Records) > 0 && (s.behind.IsZero() || page.Records[0].Received.Before(s.behind)) {
		s.behind = page.Records[0].Received
	}
	lanes, wanted := s.lanes(page.Records)
	s.mu.Unlock()
	for _, g := range page.Gaps {
		if !s.holdGap(ctx, g) {
			return nil
		}
	}
	if !s.deliver(ctx, lanes, wanted) {
		return nil // events that are not done are read again
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.begun == begun {
		s.state.Cursor, s.dirty = page.Next, true
		s.behind = time.Time{}
	}
	return nil
}

// lanes returns the records without unwanted and held ones, by node and in their order. mu is held.
func (s *subscription) lanes(records []journal.Record) (lanes []*lane, wanted []journal.Record) {
	index, skip := map[string]*lane{}, map[string]bool{}
	for _, h := range s.state.Held {
		if h.Event == nil {
			skip[h.key()] = true
		}
	}
	for _, r := range records {
		of := laneOf(r)
		key := of.key()
		if skip[key] || !s.wants(r) {
			continue
		}
		if index[key] == nil {
			index[key] = &lane{held: of}
			lanes = append(lanes, index[key])
		}
		index[key].records, wanted = append(index[key].records, r), append(wanted, r)
	}
	return lanes, wanted
}

// wants reports whether the expression is true of a record. Evaluation errors are counted. mu is held.
func (s *subscription) wants(r journal.Record) bool {
	if s.wanted == nil {
		return true
	}
	match, err := s.wanted.Matches(r)
	if err != nil {
		s.counts.FilterErrors++
	}
	return match
}

// holdGap queues an event about a gap. It waits while too many are held, and returns false if it gave up.
func (s *subscription) holdGap(ctx context.Context, g journal.Gap) bool {
	for {
		s.mu.Lock()
		room := len(s.state.Held) < maxHeld
		if room {
			s.hold(s.gap(g, held{}))
		}
		paused := s.state.Paused != ""
		s.mu.Unlock()
		if room || paused || ctx.Err() != nil {
			return room
		}
		wait(ctx, backoff(4), nil, s.wake)
	}
}

// hold adds a node, or an event outside the order of the others. mu is held.
func (s *subscription) hold(h *held) {
	if h.Event != nil {
		for _, other := range s.state.Held {
			if other.ID == h.ID && other.DeadLetter == h.DeadLetter {
				return
			}
		}
	}
	s.state.Held = append(s.state.Held, h)
	s.dirty = true
	signal(s.retryNow)
}

// gap returns a gap as an event, for a single node if of names one. mu is held.
func (s *subscription) gap(g journal.Gap, of held) *held {
	lost := event.Lost{Subscription: s.Name, From: strconv.FormatUint(g.From, 10), To: strconv.FormatUint(g.To, 10),
		Reason: plain(g.Reason), Snapshot: "/v1/nodes", Cluster: of.Cluster, Node: of.Node}
	id := fmt.Sprintf("%s-%s-%s", s.state.Journal, lost.From, lost.To)
	if of.Node != "" {
		id += "-" + of.Cluster + "-" + of.Node
	}
	text, err := json.Marshal(map[string]any{
		"specversion": "1.0", "id": id, "source": "/eventcenter/subscriptions/" + s.Name,
		"type": event.SubscriptionGap, "time": time.Now().UTC(), "datacontenttype": "application/json",
		"dataschema": event.SubscriptionGap.Schema(), "severity": "warning", "data": lost,
	})
	if err != nil {
		s.m.Log.Error("encode a gap failed", "subscription", s.Name, "err", err)
	}
	s.m.Log.Warn("skip lost events of a subscription", "subscription", s.Name, "from", g.From, "to", g.To,
		"reason", g.Reason)
	s.counts.Missed += g.To - g.From + 1
	return &held{Event: text, Held: Held{ID: id}}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
