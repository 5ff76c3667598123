package share

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"sync"
)

// Listener limits connections per network and in total. Beyond a limit it closes the oldest connection of a stranger to
// make room, of the network itself or of that with the most strangers; without any, it closes the new one.
func Listener(inner net.Listener, each, all int64) net.Listener {
	return &listener{Listener: inner, open: NewAmounts(each, all), strangers: map[string]*list.List{}}
}

type listener struct {
	net.Listener
	open *Amounts

	mu        sync.Mutex // guards strangers
	strangers map[string]*list.List
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		inner, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: inner, of: l, key: ofAddress(inner.RemoteAddr().String())}
		if l.open.Take(c.key, 1) || l.makeRoom(c.key) && l.open.Take(c.key, 1) {
			l.add(c)
			return c, nil
		}
		_ = inner.Close() // the client notices, and retries
	}
}

func (l *listener) add(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.strangers[c.key] == nil {
		l.strangers[c.key] = list.New()
	}
	c.place = l.strangers[c.key].PushBack(c)
}

// makeRoom closes a connection for a new one of this network.
func (l *listener) makeRoom(key string) bool {
	l.mu.Lock()
	var oldest *conn
	most := l.strangers[key]
	if !l.open.full(key) {
		for _, of := range l.strangers {
			if most == nil || of.Len() > most.Len() {
				most = of
			}
		}
	}
	if most != nil {
		oldest, _ = most.Front().Value.(*conn)
	}
	l.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close()
	}
	return oldest != nil
}

// conn is a stranger's connection until a request on it has an identity.
type conn struct {
	net.Conn
	of    *listener
	key   string
	place *list.Element // among the strangers
	once  sync.Once
}

func (c *conn) identified() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if strangers := c.of.strangers[c.key]; strangers != nil {
		if strangers.Remove(c.place); strangers.Len() == 0 { // it may be removed already
			delete(c.of.strangers, c.key)
		}
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.once.Do(func() {
		c.identified()
		c.of.open.Give(c.key, 1)
	})
	return c.Conn.Close()
}

type connection struct{}

// Connection is the ConnContext of a server with a Listener, for Identified.
func Connection(ctx context.Context, c net.Conn) context.Context {
	if encrypted, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = encrypted.NetConn()
	}
	return context.WithValue(ctx, connection{}, c)
}

// Identified keeps the connection of an identified request: from now on it is not chosen to make room for others.
func Identified(r *http.Request) {
	if c, ok := r.Context().Value(connection{}).(*conn); ok {
		c.identified()
	}
}
