package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
)

// The intake alone: minimal code sends prepared requests, so that the center gets nearly all of the two cores. The
// other figures include the cost of the agents' own code.

const connections = 256

// intake measures a center's intake of prepared requests, and another binary's in the same run.
func (b *bench) intake(ctx context.Context) error {
	binaries := []string{b.binary}
	if b.against != "" {
		binaries = []string{b.against, b.binary}
	}
	for _, l := range []struct {
		events, many, rate int
	}{{30_000, 1, 0}, {75_000, 1, 5000}, {150_000, 10, 0}, {150_000, 10, 15_000}} {
		requests, err := prepared(b.nodes, l.events/l.many, l.many)
		if err != nil {
			return err
		}
		what := fmt.Sprintf("prepared requests of %d events, %d senders", l.many, connections)
		if l.rate > 0 {
			what = fmt.Sprintf("prepared requests of %d events, %d/s", l.many, l.rate)
		}
		for i, binary := range binaries {
			name := ""
			if len(binaries) > 1 {
				name = ", " + []string{"before", "after"}[i]
			}
			if err := b.takes(ctx, binary, what+name, requests, l.many, l.rate); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) takes(ctx context.Context, binary, what string, requests [][]byte, many, rate int) error {
	c, err := b.startCenter(binary, b.dir+"/intake-"+strconv.FormatInt(time.Now().UnixNano(), 36), 0)
	if err != nil {
		return err
	}
	defer os.RemoveAll(c.dir)
	defer func() { _ = c.stop(syscall.SIGKILL) }()
	if _, err := c.ready(ctx); err != nil {
		return err
	}
	token, err := os.ReadFile(c.token())
	if err != nil {
		return err
	}
	before, err := c.usage()
	if err != nil {
		return err
	}
	own, err := processUsage(os.Getpid())
	if err != nil {
		return err
	}
	times, span, err := sendAll(ctx, c, string(bytes.TrimSpace(token)), requests, float64(rate)/float64(many))
	if err != nil {
		return err
	}
	after, err := c.usage()
	if err != nil {
		return err
	}
	ownAfter, err := processUsage(os.Getpid())
	if err != nil {
		return err
	}
	events := float64(len(requests) * many)
	cpu := (after.cpu - before.cpu).Seconds()
	b.row(what, "", "%.0f/s; p50 / p99 %s; %.0f µs CPU an event: %.0f events for each second of CPU; the sender %.0f µs; peak %.0f MiB",
		events/span.Seconds(), figureOf(times), 1e6*cpu/events, events/cpu, 1e6*(ownAfter.cpu-own.cpu).Seconds()/events, after.peak)
	return nil
}

// prepared makes requests of nodes in turn, each with this many events.
func prepared(nodes, requests, many int) (made [][]byte, err error) {
	sequences := make([]uint64, nodes)
	for i := range requests {
		node := i % nodes
		var texts []string
		for range many {
			sequences[node]++
			e, err := changed(node, sequences[node], sequences[node]%2 == 1, time.Now())
			if err != nil {
				return nil, err
			}
			texts = append(texts, string(e.JSON))
		}
		body := "[" + strings.Join(texts, ",") + "]"
		made = append(made, fmt.Appendf(nil, "Content-Type: %s\r\nContent-Length: %d\r\n\r\n%s", event.BatchMediaType, len(body),
			body))
	}
	return made, nil
}

// sendAll sends the requests: whenever another is answered, or at a rate, whether or not earlier ones were answered. In
// the latter case durations start at the intended time. A node's requests share a connection.
func sendAll(ctx context.Context, c *center, token string, requests [][]byte, rate float64) (times []time.Duration,
	span time.Duration, err error) {
	_, host, _ := strings.Cut(c.url, "://")
	head := fmt.Sprintf("POST /v1/events HTTP/1.1\r\nHost: %s\r\nUser-Agent: nodeagent/v1.0.0\r\nAuthorization: Bearer %s\r\n",
		host, token)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	times = make([]time.Duration, len(requests))
	begun := time.Now()
	var all sync.WaitGroup
	for first := range connections {
		all.Go(func() {
			conn, err := c.dial(ctx, host)
			if err != nil {
				cancel(err)
				return
			}
			defer conn.Close()
			in := bufio.NewReader(conn)
			for i := first; i < len(requests) && ctx.Err() == nil; i += connections {
				due := time.Now()
				if rate > 0 {
					due = begun.Add(time.Duration(float64(i) / rate * float64(time.Second)))
					time.Sleep(time.Until(due))
				}
				if err := sendOne(conn, in, head, requests[i]); err != nil {
					cancel(err)
					return
				}
				times[i] = time.Since(due)
			}
		})
	}
	all.Wait()
	return times, time.Since(begun), context.Cause(ctx)
}

func (c *center) dial(ctx context.Context, host string) (net.Conn, error) {
	if t, ok := c.client.Transport.(*http.Transport); ok {
		return (&tls.Dialer{Config: t.TLSClientConfig}).DialContext(ctx, "tcp", host)
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", host)
}

func sendOne(conn net.Conn, in *bufio.Reader, head string, request []byte) error {
	if _, err := (&net.Buffers{[]byte(head), request}).WriteTo(conn); err != nil {
		return err
	}
	response, err := http.ReadResponse(in, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", response.Status, text.Bytes())
	}
	return nil
}
