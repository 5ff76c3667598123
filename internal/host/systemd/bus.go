package systemd

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// A client of D-Bus for a few questions in a row, without goroutines. The library's connection is not used: it sends
// the first call right behind BEGIN, to which there is no answer; systemd takes both into the buffer of its handshake
// when they come together, and then leaves the call there until more comes, which is never (one in three connections,
// tried with systemd 252). systemd's own clients send BEGIN together with what comes before and wait for the answer
// to that; so does this one. Nor is its decoder, which panics at a message that is cut off, and takes memory for
// whatever length is claimed.

const (
	// maxBusBytes bounds what is read in one connection. A unit in a list takes some 300 bytes.
	maxBusBytes = 16 << 20
	// busBatch is how many calls are sent at once.
	busBatch = 64
)

// busConn is a connection to a D-Bus peer. One may use it at a time.
type busConn struct {
	socket net.Conn
	left   *io.LimitedReader // of the socket
	reader *bufio.Reader     // of left
	serial uint32            // of the latest call
	forget func() bool       // ends the watch over the context
}

// busReply is the answer to one call.
type busReply struct {
	busMessage

	err error // what the peer says that went wrong: busFailure
}

// busFailure is an error that the peer answered with, by its name on D-Bus.
type busFailure string

func (f busFailure) Error() string { return "answered " + hosterr.Clip(string(f)) }

// dialBus connects to a D-Bus peer. Whatever waits for it ends with ctx.
func dialBus(ctx context.Context, path string) (*busConn, error) { return dialBusWithin(ctx, path, 0) }

// dialBusWithin is dialBus for a connection on which everything must be done within a time, until its deadline is set
// anew; 0: as long as ctx.
func dialBusWithin(ctx context.Context, path string, within time.Duration) (*busConn, error) {
	socket, err := (&net.Dialer{Timeout: within}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err // names path
	}
	if within > 0 {
		_ = socket.SetDeadline(time.Now().Add(within)) // of an open socket: it cannot fail
	}
	left := &io.LimitedReader{R: socket, N: maxBusBytes}
	b := &busConn{socket: socket, left: left, reader: bufio.NewReader(left)}
	b.forget = context.AfterFunc(ctx, func() { _ = socket.SetDeadline(time.Unix(1, 0)) })
	if err := b.authenticate(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), b.close())
	}
	return b, nil
}

func (b *busConn) close() error {
	b.forget()
	return b.socket.Close()
}

// authenticate tells who we are, which the peer knows already.
func (b *busConn) authenticate() error {
	user := hex.EncodeToString([]byte(strconv.Itoa(os.Getuid())))
	if _, err := io.WriteString(b.socket, "\x00AUTH EXTERNAL "+user+"\r\nBEGIN\r\n"); err != nil {
		return fmt.Errorf("authenticate: %w", err)
	}
	line, err := b.reader.ReadSlice('\n')
	if err != nil {
		return fmt.Errorf("authenticate: %w", b.broken(err))
	}
	if !strings.HasPrefix(string(line), "OK ") {
		return fmt.Errorf("authenticate: answered %q", hosterr.Clip(strings.ToValidUTF8(string(line), "?")))
	}
	return nil
}

// ask makes calls and returns the answers in the same order. The error tells that it broke off.
func (b *busConn) ask(calls ...busCall) ([]busReply, error) {
	replies := make([]busReply, 0, len(calls))
	for len(calls) > 0 {
		batch := calls[:min(len(calls), busBatch)]
		calls = calls[len(batch):]
		answers, err := b.batch(batch)
		if err != nil {
			return nil, fmt.Errorf("call %s: %w", batch[0].member, err)
		}
		replies = append(replies, answers...)
	}
	return replies, nil
}

func (b *busConn) batch(calls []busCall) ([]busReply, error) {
	first := b.serial + 1
	var out []byte
	for _, call := range calls {
		b.serial++
		out = call.encode(out, b.serial)
	}
	if _, err := b.socket.Write(out); err != nil {
		return nil, err
	}
	replies, missing := make([]busReply, len(calls)), len(calls)
	for missing > 0 {
		message, err := b.read()
		if err != nil {
			return nil, err
		}
		index := message.replyTo - first
		if index >= uint32(len(replies)) || replies[index].kind != 0 { //nolint:gosec // a batch
			continue // a signal
		}
		switch message.kind {
		case busMethodReply:
			replies[index] = busReply{busMessage: message}
		case busError:
			replies[index] = busReply{message, busFailure(message.errorName)}
		default:
			continue
		}
		missing--
	}
	return replies, nil
}

// read reads the next message.
func (b *busConn) read() (busMessage, error) {
	head, err := b.reader.Peek(busHead)
	if err != nil {
		return busMessage{}, b.broken(err)
	}
	size, err := busSize(head)
	if err != nil {
		return busMessage{}, err
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(b.reader, data); err != nil {
		return busMessage{}, b.broken(err)
	}
	return parseBusMessage(data)
}

// broken returns why there is no more.
func (b *busConn) broken(err error) error {
	switch {
	case b.left.N <= 0:
		return fmt.Errorf("more than %d bytes", maxBusBytes)
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	}
	return err
}

// isBusFailure reports whether the peer answered with one of these errors, of D-Bus or of systemd.
func isBusFailure(err error, names ...string) bool {
	var failure busFailure
	if !errors.As(err, &failure) {
		return false
	}
	for _, name := range names {
		if string(failure) == "org.freedesktop.DBus.Error."+name || string(failure) == systemdName+"."+name {
			return true
		}
	}
	return false
}
