// Package intake serves the connections on which agents send events. Ten thousand of them are open and nearly all are idle:
// an http.Server keeps two buffers, a context and a large stack for each, and watches for the end of a connection whose
// request it works on. This keeps a goroutine alone, with the smallest stack: requests are answered by others, few of them,
// whose stacks have grown. Of a request that waits for others nothing is read: it waits in the kernel, and with TLS encrypted.
// It understands requests as agents write them, and nothing else: a connection on which anything else comes is the
// http.Server's, from its first byte on.
package intake

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"
)

// Config is that of a Listener. All must be set.
type Config struct {
	Handler http.Handler // of POST Path; the other requests are for the http.Server
	Path    string
	Head    time.Duration // for a handshake and the head of a request to arrive
	Body    time.Duration // for a body to arrive of which the handler reads nothing
	Idle    time.Duration // between requests
	Most    int64         // requests that are worked on at the same time
	Queue   time.Duration // how long a request waits for others, before it is read; it tells its handler how long it has (Waited)
	Log     *slog.Logger
}

// Listener gives an http.Server the connections that are not an agent's.
type Listener struct {
	Config
	inner  net.Listener
	others chan accepted
	closed chan struct{}
	ctx    context.Context // of handshakes; ends with the listener
	cancel context.CancelFunc

	heads  heads
	places *semaphore.Weighted // of requests that are worked on

	mu      sync.Mutex // guards what follows
	conns   map[*conn]struct{}
	workers []chan *conn   // those that wait, the last for the shortest time; each takes one connection
	open    sync.WaitGroup // one for each of conns
}

// maxWaiting is how many workers wait for requests. There are more where more are worked on: what bounds them is the
// handler's to say.
const maxWaiting = 64

// accepted is what Accept returns.
type accepted struct {
	conn net.Conn
	err  error
}

// New takes over a listener.
func New(inner net.Listener, c Config) *Listener {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Listener{Config: c, inner: inner, others: make(chan accepted), closed: make(chan struct{}), ctx: ctx, cancel: cancel,
		conns: map[*conn]struct{}{}, places: semaphore.NewWeighted(c.Most)}
	go l.accept()
	return l
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return l.inner.Addr() }

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case a := <-l.others:
		return a.conn, a.err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends the idle connections; those with a request end when it is answered.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.closed:
		return nil
	default:
	}
	close(l.closed)
	l.cancel()
	for _, worker := range l.workers {
		worker <- nil
	}
	l.workers = nil
	for c := range l.conns {
		if c.state.CompareAndSwap(idle, ended) {
			_ = c.Close() // what was read is answered
		}
	}
	return l.inner.Close()
}

// Wait returns when no connection is open any more, after Close. When ctx ends it closes those that are left.
func (l *Listener) Wait(ctx context.Context) {
	done := make(chan struct{})
	go func() { l.open.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		l.mu.Lock()
		defer l.mu.Unlock()
		for c := range l.conns {
			_ = c.Close()
		}
	}
}

// Open returns how many connections are open that are not the http.Server's.
func (l *Listener) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns)
}

// answer has a worker answer the request that has begun on a connection.
func (l *Listener) answer(c *conn) {
	l.mu.Lock()
	var worker chan *conn
	if last := len(l.workers) - 1; last >= 0 {
		worker, l.workers = l.workers[last], l.workers[:last]
	}
	l.mu.Unlock()
	if worker == nil {
		go l.work(c)
		return
	}
	worker <- c
}

// work answers requests, of one connection after the other, until enough others wait for some.
func (l *Listener) work(c *conn) {
	own := make(chan *conn, 1)
	for ; c != nil; c = <-own {
		c.work()
		l.mu.Lock()
		enough := len(l.workers) >= maxWaiting || l.ctx.Err() != nil
		if !enough {
			l.workers = append(l.workers, own)
		}
		l.mu.Unlock()
		if enough {
			return
		}
	}
}

func (l *Listener) accept() {
	for {
		inner, err := l.inner.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || !l.hand(nil, err) {
				return
			}
			continue // the http.Server waits before it asks for the next
		}
		c := &conn{Conn: inner, of: l, remote: inner.RemoteAddr().String(), raw: rawOf(inner)}
		l.mu.Lock()
		l.conns[c] = struct{}{}
		l.open.Add(1)
		l.mu.Unlock()
		go c.serve()
	}
}

// hand gives the http.Server a connection or an error. It is false where it takes none any more.
func (l *Listener) hand(c net.Conn, err error) bool {
	select {
	case l.others <- accepted{c, err}:
		return true
	case <-l.closed:
		return false
	}
}

// The states of a connection.
const (
	busy int32 = iota
	idle
	ended
)

// conn is an open connection.
type conn struct {
	net.Conn
	of     *Listener
	remote string
	raw    syscall.RawConn // below TLS; nil where there is none
	tls    *tls.ConnectionState
	state  atomic.Int32
	first  [1]byte       // of a request
	read   int           // how much of a request is there: 1 where first is of it
	waited time.Duration // of the request, for others
	placed bool          // it counts among those that are worked on
	handed bool
}

// rawOf returns what the kernel has for a connection, below TLS.
func rawOf(c net.Conn) syscall.RawConn {
	if secured, ok := c.(*tls.Conn); ok {
		c = secured.NetConn()
	}
	if s, ok := c.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			return raw
		}
	}
	return nil
}

// serve begins with a connection.
func (c *conn) serve() {
	if c.raw == nil || !c.handshake() {
		c.hand(c.Conn)
		c.end()
		return
	}
	if c.tls == nil {
		c.next(c.of.Head)
		return
	}
	if c.ahead() {
		go c.next(c.of.Head) // the stack of a handshake is large
		return
	}
	c.end()
}

// next waits for a request, and for a place among those that are worked on. A worker answers it.
func (c *conn) next(limit time.Duration) {
	if c.read == 0 && !c.wait(limit) {
		c.end()
		return
	}
	c.waited = 0
	if c.placed = c.of.places.TryAcquire(1); !c.placed {
		c.queue()
	}
	c.of.answer(c)
}

// queue waits until others leave a place, or for too long. It does not end with the listener: what was sent is answered.
func (c *conn) queue() {
	begun := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), c.of.Queue)
	defer cancel()
	c.placed = c.of.places.Acquire(ctx, 1) == nil
	c.waited = time.Since(begun)
}

// leave gives the place to another.
func (c *conn) leave() {
	if c.placed {
		c.placed = false
		c.of.places.Release(1)
	}
}

// work answers a request. One that makes its handler panic ends its connection alone.
func (c *conn) work() {
	reuse := false
	defer func() {
		v := recover()
		if err, _ := v.(error); v != nil && !errors.Is(err, http.ErrAbortHandler) {
			c.of.Log.Error("a request could not be answered", "panic", v, "stack", string(debug.Stack()))
		}
		c.leave()
		if !reuse {
			c.end()
			return
		}
		go c.next(c.of.Idle)
	}()
	reuse = c.request()
}

// end forgets the connection.
func (c *conn) end() {
	if !c.handed {
		_ = c.Close()
	}
	c.of.mu.Lock()
	delete(c.of.conns, c)
	c.of.mu.Unlock()
	c.of.open.Done()
}

// hand gives the connection to the http.Server.
func (c *conn) hand(whole net.Conn) {
	_ = c.SetReadDeadline(time.Time{}) // where this fails so does the next read
	c.handed = c.of.hand(whole, nil)
}

// handshake is false for what is no HTTP/1.1: the http.Server then says what is wrong.
func (c *conn) handshake() bool {
	secured, ok := c.Conn.(*tls.Conn)
	if !ok {
		return true
	}
	ctx, cancel := context.WithTimeout(c.of.ctx, c.of.Head)
	defer cancel()
	if secured.HandshakeContext(ctx) != nil {
		return false
	}
	state := secured.ConnectionState()
	c.tls = &state
	return state.NegotiatedProtocol == "" || state.NegotiatedProtocol == "http/1.1"
}

// wait waits for the next request. It is false when there will be none.
func (c *conn) wait(limit time.Duration) bool {
	if c.SetReadDeadline(time.Now().Add(limit)) != nil {
		return false
	}
	c.state.Store(idle)
	if c.stopping() {
		return false
	}
	there := c.arrived()
	return c.state.CompareAndSwap(idle, busy) && there
}

// arrived waits for something to read, and reads nothing. It is false at the end of the connection.
func (c *conn) arrived() (there bool) {
	err := c.raw.Read(func(fd uintptr) (done bool) {
		n, err := 0, error(syscall.EINTR)
		for errors.Is(err, syscall.EINTR) {
			n, _, err = syscall.Recvfrom(int(fd), c.first[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		}
		there = n > 0 && err == nil
		return !errors.Is(err, syscall.EAGAIN)
	})
	return there && err == nil
}

// ahead looks for what TLS has read with what was before: that is not seen by who waits for the kernel. It is false at
// the end of the connection.
func (c *conn) ahead() bool {
	if c.read = 0; c.tls == nil {
		return true
	}
	if c.SetReadDeadline(time.Unix(1, 0)) != nil { // has passed: nothing is read from the kernel
		return false
	}
	var err error
	c.read, err = c.Read(c.first[:])
	return c.read > 0 || errors.Is(err, os.ErrDeadlineExceeded)
}

func (c *conn) stopping() bool {
	select {
	case <-c.of.closed:
		return true
	default:
		return false
	}
}
