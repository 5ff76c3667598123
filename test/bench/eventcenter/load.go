package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
)

// node is a simulated node with a connection of its own.
type node struct {
	number int
	client *http.Client

	sending  sync.Mutex // held during a request: guards sequence
	sequence uint64
}

// load is the result of requests at a rate.
type load struct {
	sync.Mutex // guards the fields below
	times      []time.Duration
	stored     int            // events
	failed     map[string]int // requests, by reason
}

// post sends changes of the node in one request, until the center takes them. The delay counts from when they were due.
func (n *node) post(ctx context.Context, c *center, events int, due time.Time, l *load) {
	n.sending.Lock()
	defer n.sending.Unlock()
	body := []byte("[")
	for i := range events {
		n.sequence++
		e, err := changed(n.number, n.sequence, n.sequence%2 == 1, due)
		if err != nil {
			l.note("encode: "+err.Error(), 0, 0)
			return
		}
		body = append(append(body, e.JSON...), ",]"[min(1, (i+1)/events)])
	}
	for ctx.Err() == nil {
		_, status, err := c.do(ctx, n.client, http.MethodPost, "/v1/events", event.BatchMediaType, body)
		if err == nil && status == http.StatusOK {
			l.note("", events, time.Since(due))
			return
		}
		l.note(fmt.Sprint("status ", status), 0, 0) // 0: no answer
		time.Sleep(time.Second)
	}
}

func (l *load) note(reason string, stored int, took time.Duration) {
	l.Lock()
	defer l.Unlock()
	if l.stored += stored; reason != "" {
		l.failed[reason]++
		return
	}
	l.times = append(l.times, took)
}

// generate sends requests of this many events at a rate of requests per second, from one node after the other.
func generate(ctx context.Context, c *center, nodes []*node, events, rate int, span time.Duration) (*load, error) {
	l := &load{failed: map[string]int{}}
	var sending sync.WaitGroup
	begun := time.Now()
	for i := range int(span.Seconds() * float64(rate)) {
		due := begun.Add(time.Duration(i) * time.Second / time.Duration(rate))
		time.Sleep(time.Until(due))
		sending.Go(func() { nodes[i*7919%len(nodes)].post(ctx, c, events, due, l) })
	}
	sending.Wait()
	return l, ctx.Err()
}

// loads connects all nodes and sends 1,000 events a second one by one, then 5,000 in batches.
func (b *bench) loads(ctx context.Context, c *center) error {
	nodes := make([]*node, b.nodes)
	for i := range nodes {
		nodes[i] = &node{number: i, sequence: 1 << 32, client: &http.Client{Timeout: 10 * time.Second,
			Transport: &http.Transport{MaxConnsPerHost: 1, ReadBufferSize: 1 << 10, WriteBufferSize: 1 << 10}}}
	}
	before, err := c.usage()
	if err != nil {
		return err
	}
	if _, err := generate(ctx, c, nodes, 1, 1000, time.Duration(b.nodes)*time.Millisecond); err != nil {
		return err
	}
	u, err := c.usage()
	if err != nil {
		return err
	}
	row("memory for each open connection", "60 KiB", "%.0f KiB; all together %.0f MiB",
		(u.resident-before.resident)*1024/float64(b.nodes), u.resident)
	for _, kind := range []struct{ events, rate int }{{1, 1000}, {50, 100}} {
		first, err := c.newest(ctx)
		if err != nil {
			return err
		}
		before, err := c.usage()
		if err != nil {
			return err
		}
		l, err := generate(ctx, c, nodes, kind.events, kind.rate, b.span)
		last, err1 := c.newest(ctx)
		after, err2 := c.usage()
		if err := errors.Join(err, err1, err2); err != nil {
			return err
		}
		row(fmt.Sprintf("%d events/s for %s, %d a request, p50 / p99", kind.events*kind.rate, b.span, kind.events),
			"p99 100 ms", "%s; %d acknowledged, %d lost; failed requests: %v; CPU an event: %.0f µs; %.0f MiB",
			figureOf(l.times), l.stored, first+l.stored-last, l.failed,
			float64((after.cpu-before.cpu).Microseconds())/float64(max(1, l.stored)), after.resident)
	}
	return nil
}

// newest returns the newest offset.
func (c *center) newest(ctx context.Context) (int, error) {
	var answer struct {
		Newest int `json:",string"`
	}
	body, _, err := c.get(ctx, "/v1/events?limit=1")
	if err != nil {
		return 0, err
	}
	return answer.Newest, json.Unmarshal(body, &answer)
}
