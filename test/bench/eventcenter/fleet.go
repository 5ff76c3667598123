package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
)

// fleet simulates many nodes in this process: each has the agent's own reporter, its own connection and its own outbox.
type fleet struct {
	nodes   []*node
	stop    context.CancelFunc
	running sync.WaitGroup

	waiting atomic.Int64 // events in outboxes
	dropped atomic.Int64

	mu      sync.Mutex // guards the fields below
	times   []time.Duration
	reasons map[string]int // of failed requests
}

// node is a node of the fleet. It observes its reporter, to know when each event was acknowledged.
type node struct {
	*eventcenter.Reporter
	fleet  *fleet
	number int

	changing sync.Mutex // held during a change: guards raised
	raised   bool

	mu  sync.Mutex  // guards the fields below
	due time.Time   // when the event being added should have happened; zero: now
	out []time.Time // of the waiting events, in order
}

// startFleet starts all nodes at once. Their outboxes are only in memory.
func startFleet(ctx context.Context, nodes int, settings func(i int) eventcenter.Settings) *fleet {
	ctx, stop := context.WithCancel(ctx)
	f := &fleet{stop: stop, reasons: map[string]int{}}
	for i := range nodes {
		n := &node{fleet: f, number: i}
		n.Reporter = eventcenter.New(eventcenter.Config{
			Settings: settings(i), Node: nodeName(i), Boot: "9be2f5c3-5c2b-4d8b-a1ad-0c6e3f2e5d77", Version: "v1.0.0",
			Configuration: "0123456789abcdef", Checks: []string{"disk-errors"}, ReadFile: os.ReadFile, Observer: n,
		})
		f.nodes = append(f.nodes, n)
	}
	for _, n := range f.nodes {
		f.running.Go(func() { _ = n.Run(ctx) })
	}
	return f
}

// knownAfter is when all nodes have sent their initial state: ten seconds after it became known
// (pkg/report/eventcenter). Snapshots do not pass through the outbox, so this program cannot see them.
const knownAfter = 30 * time.Second

// know runs the check of each node for the first time. Each then sends a snapshot, which would arrive during a load: on
// a real node it is part of the start.
func (f *fleet) know() {
	state, _ := changeOf("sda", finding.Warning, false, time.Now())
	for _, n := range f.nodes {
		n.Update(state, nil)
	}
}

// end ends all nodes without final events: a center cannot take those of 10,000 nodes at once.
func (f *fleet) end() {
	f.stop()
	f.running.Wait()
}

// Wrote implements report.Observer.
func (n *node) Wrote(_, result string, err error) {
	if result != report.ResultOK {
		n.fleet.mu.Lock()
		n.fleet.reasons[reason(err)]++
		n.fleet.mu.Unlock()
	}
}

var ports = regexp.MustCompile(`\b[0-9]{4,5}\b`)

// reason is a text common to failures of one kind.
func reason(err error) string {
	_, text, found := strings.Cut(err.Error(), "/v1/events: ")
	if !found {
		text = err.Error()
	}
	return ports.ReplaceAllString(text, "PORT")
}

// why returns how often requests have failed since the last call.
func (f *fleet) why() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var texts []string
	n := 0
	for text, times := range f.reasons {
		texts, n = append(texts, fmt.Sprintf("%d times %.120q", times, text)), n+times
	}
	clear(f.reasons)
	if n == 0 {
		return "no request failed"
	}
	slices.Sort(texts)
	return fmt.Sprintf("%d requests failed: %s", n, strings.Join(texts, "; "))
}

// Dropped implements report.Observer.
func (n *node) Dropped(_ string, _ finding.Severity, dropped int) {
	n.fleet.dropped.Add(int64(dropped))
}

// Queued implements report.Observer: events that left the outbox are durable in the center.
func (n *node) Queued(_ string, length int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	n.fleet.waiting.Add(int64(length - len(n.out)))
	for len(n.out) < length {
		due := n.due
		if due.IsZero() {
			due = now
		}
		n.out = append(n.out, due)
	}
	if gone := len(n.out) - length; gone > 0 {
		n.fleet.mu.Lock()
		for _, due := range n.out[:gone] {
			n.fleet.times = append(n.fleet.times, now.Sub(due))
		}
		n.fleet.mu.Unlock()
		n.out = append(n.out[:0], n.out[gone:]...)
	}
}

// change makes several simultaneous changes on the node.
func (n *node) change(due time.Time, times int, disk string, severity finding.Severity) {
	n.changing.Lock()
	defer n.changing.Unlock()
	n.mu.Lock()
	n.due = due
	n.mu.Unlock()
	var state finding.State
	updates := make([]finding.Update, times)
	for i := range updates {
		n.raised = !n.raised
		state, updates[i] = changeOf(disk, severity, n.raised, time.Now())
	}
	n.Update(state, updates)
	n.mu.Lock()
	n.due = time.Time{}
	n.mu.Unlock()
}

// delivered returns how long events took since the last call, from their intended time until they were known to be
// durable.
func (f *fleet) delivered() figure {
	f.mu.Lock()
	times := f.times
	f.times = nil
	f.mu.Unlock()
	return figureOf(times)
}

// drained waits until all outboxes are empty, and returns how long that took.
func (f *fleet) drained(ctx context.Context, limit time.Duration) (time.Duration, error) {
	begun := time.Now()
	for f.waiting.Load() > 0 {
		if time.Since(begun) > limit || ctx.Err() != nil {
			return 0, errors.Join(ctx.Err(), fmt.Errorf("%d events still wait after %s; %s", f.waiting.Load(),
				time.Since(begun).Round(time.Second), f.why()))
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(begun), nil
}

// load is the result of a load.
type load struct {
	figure
	sent      int
	span      time.Duration
	left      int64         // waiting at its end
	drain     time.Duration // until all outboxes were empty
	perSecond float64       // durable events, until all outboxes were empty
}

// load makes events happen at a rate, whether or not earlier ones were stored.
func (f *fleet) load(ctx context.Context, rate int, span time.Duration) (l load, err error) {
	f.delivered()
	order := rand.Perm(len(f.nodes))
	begun := time.Now()
	for i := 0; ctx.Err() == nil; i++ {
		due := begun.Add(time.Duration(i) * time.Second / time.Duration(rate))
		if due.Sub(begun) >= span {
			break
		}
		time.Sleep(time.Until(due))
		f.nodes[order[i%len(order)]].change(due, 1, "sda", finding.Warning)
		l.sent++
	}
	l.span, l.left = time.Since(begun), f.waiting.Load()
	if l.drain, err = f.drained(ctx, 5*time.Minute); err != nil {
		return l, err
	}
	l.perSecond = float64(l.sent) / time.Since(begun).Seconds()
	l.figure = f.delivered()
	return l, ctx.Err()
}
