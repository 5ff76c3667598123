package systemd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// maxBusBytes bounds the bytes read from one connection. A unit in a list takes some 300 bytes.
const maxBusBytes = 16 << 20

// Connect connects go-systemd to systemd itself. The connection ends with ctx, and so does every call that waits for an
// answer.
func Connect(ctx context.Context) (*systemd.Conn, error) {
	return (&peer{path: realSystemd().private}).connect(ctx)
}

// peer is systemd itself, or the bus.
type peer struct {
	path    string
	hello   bool // it is a bus, which needs a Hello
	endless bool // maxBusBytes bounds each message, not the sum

	failure atomic.Pointer[error] // why a connection could not be read: godbus only reports that it was closed
}

// connect makes go-systemd's two connections: one for calls, one for signals.
func (p *peer) connect(ctx context.Context) (*systemd.Conn, error) {
	return systemd.NewConnection(func() (*dbus.Conn, error) {
		signals := dbus.NewDefaultSignalHandler() //nolint:staticcheck // the only way to the default that can be wrapped
		return p.dial(ctx, dbus.WithSignalHandler(&signalQueue{defaultSignals: signals}))
	})
}

type defaultSignals interface {
	dbus.SignalHandler
	dbus.SignalRegistrar
	dbus.Terminator
}

// signalQueue closes a channel even if the connection broke before go-systemd registers the channel: godbus would not,
// and go-systemd would wait for it forever.
type signalQueue struct {
	defaultSignals

	mu    sync.Mutex // guards ended
	ended bool
}

// AddSignal implements dbus.SignalRegistrar.
func (s *signalQueue) AddSignal(ch chan<- *dbus.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		close(ch)
		return
	}
	s.defaultSignals.AddSignal(ch)
}

// Terminate implements dbus.Terminator.
func (s *signalQueue) Terminate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.defaultSignals.Terminate()
}

func (p *peer) dial(ctx context.Context, options ...dbus.ConnOption) (*dbus.Conn, error) {
	socket, err := (&net.Dialer{}).DialContext(ctx, "unix", p.path)
	if err != nil {
		return nil, err // contains the path
	}
	left := &io.LimitedReader{R: socket, N: maxBusBytes}
	s := &busSocket{Conn: socket, left: left, reader: bufio.NewReader(left), greeting: true, failure: &p.failure}
	s.stop = context.AfterFunc(ctx, func() { _ = socket.SetDeadline(time.Unix(1, 0)) })
	options = append(options, dbus.WithContext(ctx), dbus.WithIncomingInterceptor(func(m *dbus.Message) {
		if p.endless {
			left.N = maxBusBytes
		}
		dropUnexpected(m)
	}))
	conn, err := dbus.NewConn(s, options...)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	err = conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Getuid()))})
	if err == nil && p.hello {
		err = conn.Hello()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", p.path, p.explain(err)), conn.Close())
	}
	return conn, nil
}

// explain returns the peer's error by its D-Bus name, or why the connection broke.
func (p *peer) explain(err error) error {
	var answer dbus.Error
	switch failure := p.failure.Load(); {
	case errors.As(err, &answer):
		return busFailure(answer.Name)
	case err != nil && failure != nil:
		return *failure
	}
	return err
}

// busFailure is an error answer of the peer, by its D-Bus name.
type busFailure string

func (f busFailure) Error() string { return "answered " + hosterr.Clip(string(f)) }

// isBusFailure reports whether the peer's answer was one of these errors, of D-Bus or of systemd.
func isBusFailure(err error, names ...string) bool {
	var failure busFailure
	return errors.As(err, &failure) && slices.ContainsFunc(names, func(name string) bool {
		return string(failure) == busName+".Error."+name || string(failure) == systemdName+"."+name
	})
}

// busSocket is the connection that godbus reads and writes. It returns complete messages of a bounded size, and sends
// BEGIN together with AUTH, as systemd's own clients do. godbus sends BEGIN after the answer to AUTH, and its first
// call right after it, because BEGIN has no answer. If both arrive together, systemd reads both into the buffer of its
// handshake, and then leaves the call there until more data arrives, which never happens. That depends on timing: with
// systemd 252 it was one in three connections, and another time none of 60. In this order it cannot happen.
type busSocket struct {
	net.Conn

	left     *io.LimitedReader // of Conn
	reader   *bufio.Reader     // of left
	message  []byte            // rest of the latest
	stop     func() bool       // ends the watch of the context
	greeting bool              // until BEGIN: godbus reads ahead, and would lose data after the answer
	failure  *atomic.Pointer[error]
}

func (s *busSocket) Read(data []byte) (n int, err error) {
	switch {
	case s.greeting:
		s.message, err = s.reader.ReadSlice('\n')
	case len(s.message) == 0:
		s.message, err = readMessage(s.reader)
	}
	n = copy(data, s.message)
	s.message = s.message[n:]
	switch {
	case err == nil:
		return n, nil
	case s.left.N <= 0:
		err = fmt.Errorf("more than %d bytes", maxBusBytes)
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	s.failure.CompareAndSwap(nil, &err)
	return n, err
}

func (s *busSocket) Write(data []byte) (int, error) {
	switch {
	case s.greeting && bytes.HasPrefix(data, []byte("AUTH EXTERNAL")):
		user := hex.EncodeToString([]byte(strconv.Itoa(os.Getuid())))
		_, err := io.WriteString(s.Conn, "AUTH EXTERNAL "+user+"\r\nBEGIN\r\n")
		return len(data), err
	case s.greeting && string(data) == "BEGIN\r\n":
		s.greeting = false
		return len(data), nil
	}
	return s.Conn.Write(data)
}

func (s *busSocket) Close() error {
	s.stop()
	return s.Conn.Close()
}
