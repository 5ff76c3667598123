package eventcenter

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	dialLimit      = 3 * time.Second
	handshakeLimit = 5 * time.Second
	keepAlive      = 30 * time.Second
)

// connections are those of one goroutine to one center at a time: HTTP/1.1, without a proxy. It writes and reads itself: an
// http.Transport has two more goroutines for each connection, through which every request and answer goes.
type connections struct {
	config *tls.Config

	mu    sync.Mutex // guards what follows
	ready *connection
	ended bool // what is in use is closed after it
}

// connection is an open connection.
type connection struct {
	net.Conn
	to     string
	in     *bufio.Reader
	limit  io.LimitedReader // below in
	out    *bufio.Writer
	usedAt time.Time
}

// RoundTrip implements http.RoundTripper. The center may end a connection that is idle: then the request is sent again on
// another one. What comes twice is stored once.
func (c *connections) RoundTrip(r *http.Request) (*http.Response, error) {
	if used := c.take(target(r)); used != nil {
		if response, began, err := c.exchange(used, r); err == nil || began || r.Context().Err() != nil {
			return response, err
		}
		again := *r
		var err error
		if again.Body, err = r.GetBody(); err != nil {
			return nil, err
		}
		r = &again
	}
	fresh, err := c.open(r)
	if err != nil {
		return nil, err
	}
	response, _, err := c.exchange(fresh, r)
	return response, err
}

// target is where a request goes.
func target(r *http.Request) string { return r.URL.Scheme + "://" + r.URL.Host }

// take returns the connection that is ready, if it leads there.
func (c *connections) take(to string) *connection {
	c.mu.Lock()
	defer c.mu.Unlock()
	ready := c.ready
	c.ready = nil
	if ready != nil && (ready.to != to || time.Since(ready.usedAt) > idleConnection) {
		_ = ready.Close()
		ready = nil
	}
	return ready
}

// release keeps a connection for the next request.
func (c *connections) release(used *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	used.usedAt = time.Now()
	if c.ended || c.ready != nil {
		_ = used.Close()
		return
	}
	c.ready = used
}

// close ends the connection that is not in use; the one that is ends after its request.
func (c *connections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if c.ready != nil {
		_ = c.ready.Close()
		c.ready = nil
	}
}

func (c *connections) open(r *http.Request) (*connection, error) {
	host, port := r.URL.Hostname(), r.URL.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[r.URL.Scheme]
	}
	dialer := net.Dialer{Timeout: dialLimit, KeepAlive: keepAlive}
	conn, err := dialer.DialContext(r.Context(), "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, err
	}
	if r.URL.Scheme == "https" {
		config := c.config.Clone()
		if config.ServerName == "" {
			config.ServerName = host
		}
		secured := tls.Client(conn, config)
		ctx, cancel := context.WithTimeout(r.Context(), handshakeLimit)
		defer cancel()
		if err := secured.HandshakeContext(ctx); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		conn = secured
	}
	opened := &connection{Conn: conn, to: target(r), out: bufio.NewWriterSize(conn, 4<<10)}
	opened.limit.R = conn
	opened.in = bufio.NewReaderSize(&opened.limit, 4<<10)
	return opened, nil
}

// exchange sends a request and reads the answer's head. began is whether anything came of the answer.
func (c *connections) exchange(on *connection, r *http.Request) (response *http.Response, began bool, err error) {
	deadline, _ := r.Context().Deadline()
	if err := on.SetDeadline(deadline); err != nil {
		return nil, false, errors.Join(err, on.Close())
	}
	stop := context.AfterFunc(r.Context(), func() { _ = on.SetDeadline(time.Unix(1, 0)) })
	on.limit.N = maxHeader
	failed := r.Write(on.out)
	failed = errors.Join(failed, on.out.Flush())
	response, err = on.answer(r) // one that refuses a request may come before all of it is sent
	if err != nil {
		stop()
		return nil, on.limit.N < maxHeader, errors.Join(failed, err, on.Close(), r.Context().Err())
	}
	on.limit.N = math.MaxInt64
	response.Body = &answer{ReadCloser: response.Body, connections: c, on: on, stop: stop, keep: failed == nil && !response.Close}
	return response, true, nil
}

// answer reads the head of an answer, and goes beyond those that only say that one will come.
func (c *connection) answer(r *http.Request) (*http.Response, error) {
	for {
		response, err := http.ReadResponse(c.in, r)
		if err != nil || response.StatusCode >= 200 || response.StatusCode == http.StatusSwitchingProtocols {
			return response, err
		}
	}
}

// answer is the body of an answer. Closed at its end it leaves the connection for the next request.
type answer struct {
	io.ReadCloser
	connections *connections
	on          *connection
	stop        func() bool
	keep, whole bool
}

func (a *answer) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	a.whole = a.whole || errors.Is(err, io.EOF)
	return n, err
}

// Close implements io.Closer.
func (a *answer) Close() error {
	if a.stop() && a.keep && a.whole && a.on.in.Buffered() == 0 {
		a.connections.release(a.on)
		return nil
	}
	return a.on.Close()
}
