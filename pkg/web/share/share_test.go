package share

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A key gets its share, and no more; the others get theirs, up to the total.
func TestAmounts(t *testing.T) {
	a := NewAmounts(2, 3)
	for i, test := range []struct {
		key  string
		want bool
	}{{"a", true}, {"a", true}, {"a", false}, {"b", true}, {"b", false}} {
		if got := a.Take(test.key, 1); got != test.want {
			t.Errorf("%d: %s takes: %v", i, test.key, got)
		}
	}
	a.Give("a", 1)
	if !a.Wait(t.Context(), "c", 1) || a.Wait(t.Context(), "c", 2) {
		t.Error("what was given back cannot be taken, or more than a part")
	}
	a.Give("a", 1)
	a.Give("b", 1)
	a.Give("c", 1)
	if a.Used() != 0 || len(a.used) != 0 {
		t.Errorf("%v is still in use", a.used)
	}
}

// A key without any rate left does not affect others; inactive keys are forgotten.
func TestRates(t *testing.T) {
	r, now := NewRates(1, 2), time.Unix(1000, 0)
	for i, want := range []bool{true, true, false} {
		if r.Take("a", now, 1) != want {
			t.Errorf("%d: not %v", i, want)
		}
	}
	if !r.Take("b", now, 1) || !r.Take("a", now.Add(time.Second), 1) {
		t.Error("another waits, or the same for ever")
	}
	for i := range maxKeys + 10 {
		r.Take(fmt.Sprint(i), now, 1)
	}
	if len(r.limiters) > maxKeys {
		t.Errorf("%d keys are kept", len(r.limiters))
	}
}

func TestOf(t *testing.T) {
	for remote, want := range map[string]string{"192.0.2.1:7": "192.0.2.1", "[::ffff:192.0.2.1]:7": "192.0.2.1",
		"[2001:db8:1:2:3::4]:7": "2001:db8:1:2::/64", "[fe80::1%eth0]:7": "fe80::/64", "@": "@"} {
		if got := Of(&http.Request{RemoteAddr: remote}); got != want {
			t.Errorf("%s: %s, want %s", remote, got, want)
		}
	}
}

// A network has a limited number of connections, and gets new ones when they end. Those of strangers make room.
func TestListener(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Listener(inner, 1, 2)
	server := &http.Server{ReadHeaderTimeout: time.Minute, ConnContext: Connection,
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/known" {
				Identified(r)
			}
		})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	ask := func(path string) (net.Conn, error) {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_, _ = io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n")
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err == nil {
			_ = answer.Body.Close()
		}
		return c, err
	}
	if _, err := ask("/"); err != nil {
		t.Fatal(err)
	}
	first, err := ask("/known")
	if err != nil {
		t.Fatalf("the connection of a stranger makes no room: %v", err)
	}
	if _, err := ask("/known"); err == nil {
		t.Error("a second connection is served")
	}
	_ = first.Close()
	for { // until the server has noticed its end
		if _, err := ask("/"); err == nil {
			return
		}
	}
}

// Networks of strangers that hold all connections keep no other out: the one that holds the most makes room. It keeps
// the connections of known senders, also those with TLS.
func TestFullListener(t *testing.T) {
	connections := &dialed{}
	l := Listener(connections, 4, 6)
	accept := func(from string, known bool) *pipe {
		p := &pipe{from: from}
		connections.next = p
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if known {
			Identified((&http.Request{}).WithContext(Connection(t.Context(), tls.Server(c, nil))))
		}
		return p
	}
	held := map[string][]*pipe{}
	for i, from := range []string{"192.0.2.2", "192.0.2.1", "192.0.2.2", "192.0.2.2", "192.0.2.1", "192.0.2.2"} {
		held[from] = append(held[from], accept(from, i == 0))
	}
	agent, most := accept("198.51.100.1", false), held["192.0.2.2"]
	if agent.closed || most[0].closed || !most[1].closed || most[2].closed || held["192.0.2.1"][0].closed {
		t.Errorf("%+v %+v", agent, held)
	}
}

// dialed is a listener with one connection at a time, pipe a connection from an address.
type dialed struct {
	net.Listener
	next *pipe
}

func (d *dialed) Accept() (net.Conn, error) { return d.next, nil }

type pipe struct {
	net.Conn
	from   string
	closed bool
}

func (p *pipe) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(p.from)} }

func (p *pipe) Close() error {
	p.closed = true
	return nil
}

// A body that never arrives, arrives too slowly, or is not read by the handler ends its connection; one at the minimum
// rate does not.
func TestStalledBody(t *testing.T) {
	for name, test := range map[string]struct {
		read  bool
		every time.Duration // for 32 KiB of 256
		want  bool          // it gets a response
	}{
		"never":            {true, time.Hour, false},
		"never and unread": {false, time.Hour, true},
		"slowly":           {true, 5 * time.Second, false},
		"steadily":         {true, time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, served := net.Pipe()
				l := &oneListener{conn: served, closed: make(chan struct{})}
				server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					Body(w, r)
					if test.read {
						if _, err := io.Copy(io.Discard, r.Body); err != nil {
							panic(http.ErrAbortHandler)
						}
					}
				})}
				go func() { _ = server.Serve(l) }()
				var writer sync.WaitGroup
				writer.Go(func() {
					_, _ = io.WriteString(client, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 262144\r\n\r\n")
					for range 8 {
						time.Sleep(test.every)
						if _, err := client.Write(make([]byte, 32<<10)); err != nil {
							return
						}
					}
				})
				begun := time.Now()
				in := bufio.NewReader(client)
				answer, err := http.ReadResponse(in, nil)
				if err == nil {
					_ = answer.Body.Close()
				}
				if (err == nil) != test.want {
					t.Errorf("answered: %v", err)
				}
				if test.every == time.Hour {
					_, _ = io.Copy(io.Discard, in) // until the connection ends
					if took := time.Since(begun); took > time.Minute {
						t.Errorf("the connection was held for %s", took)
					}
				}
				_ = client.Close()
				_ = server.Close()
				writer.Wait()
			})
		})
	}
}

// oneListener accepts one connection.
type oneListener struct {
	conn   net.Conn
	closed chan struct{}
}

func (l *oneListener) Accept() (net.Conn, error) {
	if c := l.conn; c != nil {
		l.conn = nil
		return c, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *oneListener) Close() error {
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	return nil
}

func (l *oneListener) Addr() net.Addr { return &net.TCPAddr{} }
