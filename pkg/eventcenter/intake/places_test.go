package intake

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// schemes are the ways to connect: a listener's configuration of TLS, and a client's.
func schemes(t *testing.T) map[string][2]*tls.Config {
	t.Helper()
	certified := httptest.NewUnstartedServer(nil)
	certified.StartTLS()
	t.Cleanup(certified.Close)
	trusted := &tls.Config{RootCAs: certified.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs,
		ServerName: "example.com"}
	return map[string][2]*tls.Config{"http": {}, "https": {certified.TLS, trusted}}
}

// client is a connection to a listener.
type client struct {
	net.Conn
	t  *testing.T
	in *bufio.Reader
}

func dial(t *testing.T, k *kit, config *tls.Config) *client {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", k.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if config != nil {
		conn = tls.Client(conn, config)
	}
	return &client{conn, t, bufio.NewReader(conn)}
}

func (c *client) send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.t.Fatal(err)
	}
}

// answered demands an answer, within a minute.
func (c *client) answered(status int) {
	c.t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		c.t.Fatal(err)
	}
	response, err := http.ReadResponse(c.in, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != status {
		c.t.Fatalf("%s, want %d: %v", response.Status, status, err)
	}
}

// unread returns how many bytes of a connection the kernel has, by the address of its client.
func (k *kit) unread(t *testing.T, client net.Addr) (n int) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	for c := range k.conns {
		if c.remote != client.String() {
			continue
		}
		if err := c.raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCINQ) }); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// held is a handler that holds requests until they may be answered, and says how long each has waited before.
type held struct {
	begun  chan time.Duration
	answer chan struct{}
}

func (h *held) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.begun <- w.(*response).Waited()
	<-h.answer
	says(w, r)
}

// A request that waits for others is not read: as often as one looks, the kernel has all of it. With a place it is answered.
func TestWaitsUnread(t *testing.T) {
	for scheme, config := range schemes(t) {
		t.Run(scheme, func(t *testing.T) {
			h := &held{make(chan time.Duration), make(chan struct{})}
			k := startWith(t, config[0], h.ServeHTTP, Config{Most: 1, Queue: time.Hour})
			first, second := dial(t, k, config[1]), dial(t, k, config[1])
			second.send(plain) // with the end of a handshake TLS may read it
			<-h.begun
			h.answer <- struct{}{}
			second.answered(http.StatusAccepted)
			first.send(plain)
			if waited := <-h.begun; waited != 0 {
				t.Errorf("the first has waited %s", waited)
			}
			second.send(plain)
			for size, looked := 0, 0; looked < 20; looked++ {
				now := k.unread(t, second.LocalAddr())
				if now < len(plain) || now < size {
					looked = 0 // it has not arrived
				}
				size = now
				select {
				case <-h.begun:
					t.Fatal("two are worked on")
				case <-time.After(5 * time.Millisecond):
				}
			}
			h.answer <- struct{}{}
			first.answered(http.StatusAccepted)
			if waited := <-h.begun; waited == 0 {
				t.Error("the second has not waited")
			}
			h.answer <- struct{}{}
			second.answered(http.StatusAccepted)
			second.send(plain)
			if waited := <-h.begun; waited != 0 {
				t.Errorf("its next request has waited %s", waited)
			}
			h.answer <- struct{}{}
			second.answered(http.StatusAccepted)
		})
	}
}

// Who has waited too long is told so by the handler, who knows how long it was.
func TestWaitsInVain(t *testing.T) {
	h := &held{make(chan time.Duration), make(chan struct{})}
	const queue = 20 * time.Millisecond
	k := startWith(t, nil, h.ServeHTTP, Config{Most: 1, Queue: queue})
	first, second := dial(t, k, nil), dial(t, k, nil)
	first.send(plain)
	<-h.begun
	second.send(plain)
	if waited := <-h.begun; waited < queue {
		t.Errorf("it has waited %s", waited)
	}
	close(h.answer)
	first.answered(http.StatusAccepted)
	second.answered(http.StatusAccepted)
	third := dial(t, k, nil) // who had no place has none to give back
	third.send(plain)
	if waited := <-h.begun; waited != 0 {
		t.Errorf("the third has waited %s", waited)
	}
	third.answered(http.StatusAccepted)
}

// Nobody waits for the network of another: not while its head comes, nor the rest of a body that the handler does not read,
// nor while it does not read its answer. Nor for one that is the http.Server's, that has ended, or whose handler panics.
func TestSlowSenders(t *testing.T) {
	k := startWith(t, nil, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("User-Agent") == "long" {
			w.Header().Set("X-Long", strings.Repeat("x", 64<<20)) // more than sockets hold
		}
		if r.Header.Get("User-Agent") == "panic" {
			panic("on purpose")
		}
		w.WriteHeader(http.StatusUnauthorized)
	}, Config{Most: 1, Queue: time.Hour})
	for name, text := range map[string]string{
		"half a head":        plain[:20],
		"half a body":        strings.Replace(plain, "Length: 2", "Length: 200", 1),
		"an answer not read": strings.Replace(plain, "Host", "User-Agent: long\r\nHost", 1),
		"a panic":            strings.Replace(plain, "Host", "User-Agent: panic\r\nHost", 1),
		"of another server":  "GET " + path + " HTTP/1.1\r\n\r\n",
		"an end":             "",
	} {
		t.Run(name, func(t *testing.T) {
			slow, quick := dial(t, k, nil), dial(t, k, nil)
			slow.send(text)
			if text == "" || name == "a panic" {
				_ = slow.Conn.(*net.TCPConn).CloseWrite()
				_, _ = io.ReadAll(slow)
			}
			for range 3 {
				quick.send(plain)
				quick.answered(http.StatusUnauthorized)
			}
			if rest := map[string]string{"half a head": plain[20:], "half a body": strings.Repeat("x", 198)}[name]; rest != "" {
				slow.send(rest)
				slow.answered(http.StatusUnauthorized)
			}
		})
	}
}

// gathered is a connection that sends nothing more until it is told to, and then all at once.
type gathered struct {
	net.Conn
	hold bool
	text bytes.Buffer
}

func (g *gathered) Write(p []byte) (int, error) {
	if g.hold {
		return g.text.Write(p)
	}
	g.hold = true // after the first message of a handshake
	return g.Conn.Write(p)
}

func (g *gathered) flush() error {
	_, err := g.Conn.Write(g.text.Bytes())
	g.text.Reset()
	return err
}

// dialGathered connects, and holds back the end of the handshake.
func dialGathered(t *testing.T, k *kit, config *tls.Config) (*client, *gathered) {
	t.Helper()
	c := dial(t, k, nil)
	g := &gathered{Conn: c.Conn}
	secured := tls.Client(g, config)
	c.Conn, c.in = secured, bufio.NewReader(secured)
	if err := secured.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c, g
}

// What TLS has read ahead is not waited for in vain: requests that come with the end of the handshake, or with one another.
func TestReadAhead(t *testing.T) {
	config := schemes(t)["https"]
	k := start(t, config[0], says)
	c, g := dialGathered(t, k, config[1])
	c.send(plain)
	for range 3 {
		if err := g.flush(); err != nil {
			t.Fatal(err)
		}
		c.answered(http.StatusAccepted)
		c.send(plain) // in a record of its own
	}
	for _, texts := range [][]string{{plain, plain, plain}, {plain + plain + plain[:30], plain[30:]}} {
		c, g := dialGathered(t, k, config[1])
		for _, text := range texts {
			c.send(text)
		}
		if err := g.flush(); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			c.answered(http.StatusAccepted)
		}
	}
}

// unknown accepts connections of which nothing can be asked.
type unknown struct{ net.Listener }

func (u unknown) Accept() (net.Conn, error) {
	c, err := u.Listener.Accept()
	return struct{ net.Conn }{c}, err
}

// A connection that the kernel cannot be asked about is the http.Server's.
func TestUnknownConnection(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := startOn(t, unknown{inner}, says, Config{Most: 1, Queue: time.Minute})
	if by, _ := send(t, agent(t, nil), http.MethodPost, "http://"+k.Addr().String()+path, "a"); by != "http.Server" {
		t.Errorf("by %s", by)
	}
}

// Nor does anyone wait for the rest of a record of TLS.
func TestHalfARecord(t *testing.T) {
	config := schemes(t)["https"]
	k := startWith(t, config[0], says, Config{Most: 1, Queue: time.Hour})
	slow, quick := dial(t, k, config[1]), dial(t, k, config[1])
	slow.send(plain)
	slow.answered(http.StatusAccepted)
	if _, err := slow.Conn.(*tls.Conn).NetConn().Write([]byte{23, 3, 3, 0, 200}); err != nil { // a head, RFC 8446, 5.1
		t.Fatal(err)
	}
	for range 3 {
		quick.send(plain)
		quick.answered(http.StatusAccepted)
	}
}
