package status

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/network"
)

// The limits of one listener. Any process of the node can connect to the loopback, and every connection takes a file
// descriptor, which the agent needs to observe the node.
const (
	maxConnections = 32
	headerWithin   = 2 * time.Second // probes and scrapes send their request faster
	requestWithin  = 5 * time.Second
	answerWithin   = 30 * time.Second // a reload takes long
	maxHeaderBytes = 1 << 14
)

// unknownUser is the owner if the kernel could not name one.
const unknownUser = ^uint32(0)

// ServeLoopback serves HTTP on a loopback address until ctx ends.
func ServeLoopback(ctx context.Context, address string, handler http.Handler) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return serve(ctx, listener, handler, peerUser(&host.Host{}))
}

// serve runs an HTTP server on listener until ctx ends: one request for each connection, and a bounded number of
// connections. user returns the owner of the other end; nil if all have the same owner.
func serve(ctx context.Context, listener net.Listener, handler http.Handler, user func(net.Conn) uint32) error {
	limited := &limitedListener{Listener: listener, most: maxConnections, user: user}
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: headerWithin, ReadTimeout: requestWithin, WriteTimeout: answerWithin,
		MaxHeaderBytes: maxHeaderBytes, ConnState: limited.changed,
	}
	server.SetKeepAlivesEnabled(false)
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(limited); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// limitedListener accepts every connection, so that none waits behind idle ones. If there are too many, it closes
// another one.
type limitedListener struct {
	net.Listener
	most int
	user func(net.Conn) uint32

	mu   sync.Mutex // guards open and the fields of its elements
	open []*limitedConn
}

// limitedConn is one connection of a limitedListener.
type limitedConn struct {
	net.Conn
	of     *limitedListener
	User   uint32
	Asking bool // its request has not arrived yet
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	conn := &limitedConn{Conn: accepted, of: l, User: unknownUser, Asking: true}
	if l.user != nil {
		conn.User = l.user(accepted)
	}
	if victim := l.add(conn); victim != nil {
		victim.Close()
	}
	return conn, nil
}

// add adds a connection and returns the connection to close in exchange, if any.
func (l *limitedListener) add(conn *limitedConn) (victim *limitedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) >= l.most {
		victim = expendable(l.open)
	}
	l.open = append(l.open, conn)
	return victim
}

// expendable returns the connection to close: of the user with most connections, root's last, since kubelet's probes
// are root's; then one whose request has not arrived; then the oldest.
func expendable(open []*limitedConn) *limitedConn {
	has := map[uint32]int{}
	for _, c := range open {
		has[c.User]++
	}
	return slices.MinFunc(open, func(a, b *limitedConn) int { // the first of equals, which is the oldest
		return cmp.Or(
			first(a.User != 0, b.User != 0),
			cmp.Compare(has[b.User], has[a.User]),
			first(a.Asking, b.Asking),
		)
	})
}

// first orders true before false.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// changed records that a request has arrived.
func (l *limitedListener) changed(conn net.Conn, state http.ConnState) {
	if c, ok := conn.(*limitedConn); ok && state == http.StateActive {
		l.mu.Lock()
		defer l.mu.Unlock()
		c.Asking = false
	}
}

// Close closes the connection. Its descriptor is free on return.
func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.open = slices.DeleteFunc(c.of.open, func(o *limitedConn) bool { return o == c })
	return err
}

// peerUser returns the owner of the other end of a connection over the loopback.
func peerUser(h *host.Host) func(net.Conn) uint32 {
	return func(conn net.Conn) uint32 {
		peer, err := netip.ParseAddrPort(conn.RemoteAddr().String())
		if err != nil {
			return unknownUser
		}
		own, err := netip.ParseAddrPort(conn.LocalAddr().String())
		if err != nil {
			return unknownUser
		}
		uid, err := network.TCPUser(h, peer, own)
		if err != nil {
			return unknownUser
		}
		return uid
	}
}
