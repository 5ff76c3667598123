package host

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/godbus/dbus/v5"
)

// A client of D-Bus for a few questions in a row: https://dbus.freedesktop.org/doc/dbus-specification.html. The library's
// own connection is not used, but its messages are. It sends the first call right behind BEGIN, to which there is no answer;
// systemd takes both into the buffer of its handshake when they come together, and then leaves the call there until more
// comes, which is never (one in three connections, tried with systemd 252). systemd's own clients send BEGIN together with
// what comes before and wait for the answer to that; so does this one.

const (
	// maxBusBytes bounds what is read in one connection. A unit in a list takes some 300 bytes.
	maxBusBytes = 32 << 20
	// busBatch is how many calls are sent at once.
	busBatch = 64
	busHead  = 16 // bytes, of the fixed part of a message
)

// busConn is a connection to a D-Bus peer. It has no goroutines; one may use it at a time.
type busConn struct {
	socket net.Conn
	left   *io.LimitedReader // of the socket
	reader *bufio.Reader     // of left
	serial uint32            // of the latest call
}

// busCall is a call of a method; name holds its interface too.
type busCall struct {
	path dbus.ObjectPath
	name string
	args []any
}

// busReply is the answer to one call.
type busReply struct {
	body []any
	err  error // what the peer says that went wrong: dbus.Error
}

// dialBus connects to a D-Bus peer. The socket has the deadline of ctx, so that nothing waits for longer.
func dialBus(ctx context.Context, path string) (*busConn, error) {
	socket, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err // names path
	}
	left := &io.LimitedReader{R: socket, N: maxBusBytes}
	b := &busConn{socket: socket, left: left, reader: bufio.NewReader(left)}
	if deadline, ok := ctx.Deadline(); ok {
		err = socket.SetDeadline(deadline)
	}
	if err == nil {
		err = b.authenticate()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), socket.Close())
	}
	return b, nil
}

func (b *busConn) close() error { return b.socket.Close() }

// authenticate tells who we are, which the peer knows already.
func (b *busConn) authenticate() error {
	user := hex.EncodeToString([]byte(strconv.Itoa(os.Getuid())))
	if _, err := io.WriteString(b.socket, "\x00AUTH EXTERNAL "+user+"\r\nBEGIN\r\n"); err != nil {
		return fmt.Errorf("authenticate: %w", err)
	}
	line, err := b.reader.ReadSlice('\n')
	if err != nil {
		return fmt.Errorf("authenticate: %w", err)
	}
	if !strings.HasPrefix(string(line), "OK ") {
		return fmt.Errorf("authenticate: answered %q", clip(strings.ToValidUTF8(string(line), "?")))
	}
	return nil
}

// ask makes calls of one destination and returns the answers in the same order. The error tells that it broke off.
func (b *busConn) ask(destination string, calls ...busCall) ([]busReply, error) {
	replies := make([]busReply, 0, len(calls))
	for len(calls) > 0 {
		batch := calls[:min(len(calls), busBatch)]
		calls = calls[len(batch):]
		answers, err := b.batch(destination, batch)
		if err != nil {
			return nil, err
		}
		replies = append(replies, answers...)
	}
	return replies, nil
}

func (b *busConn) batch(destination string, calls []busCall) ([]busReply, error) {
	first := b.serial + 1
	var out bytes.Buffer
	for _, call := range calls {
		b.serial++
		if err := call.encode(&out, destination, b.serial); err != nil {
			return nil, fmt.Errorf("call %s: %w", call.name, err)
		}
	}
	if _, err := b.socket.Write(out.Bytes()); err != nil {
		return nil, err
	}
	replies, missing := make([]busReply, len(calls)), len(calls)
	for missing > 0 {
		message, err := b.read()
		if err != nil {
			return nil, fmt.Errorf("call %s: %w", calls[0].name, err)
		}
		serial, _ := message.Headers[dbus.FieldReplySerial].Value().(uint32)
		if index := serial - first; message.Type != dbus.TypeSignal && index < uint32(len(replies)) { //nolint:gosec // a batch
			replies[index] = asReply(message)
			missing--
		}
	}
	return replies, nil
}

// encode appends the call to out. The library keeps the serial for itself: it is put where the protocol has it.
func (c busCall) encode(out *bytes.Buffer, destination string, serial uint32) error {
	dot := strings.LastIndexByte(c.name, '.')
	message := &dbus.Message{
		Type: dbus.TypeMethodCall, Flags: dbus.FlagNoAutoStart, Body: c.args,
		Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldDestination: dbus.MakeVariant(destination), dbus.FieldPath: dbus.MakeVariant(c.path),
			dbus.FieldInterface: dbus.MakeVariant(c.name[:max(dot, 0)]), dbus.FieldMember: dbus.MakeVariant(c.name[dot+1:]),
		},
	}
	if len(c.args) > 0 {
		message.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(c.args...))
	}
	start := out.Len()
	if err := message.EncodeTo(out, binary.LittleEndian); err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(out.Bytes()[start+8:], serial)
	return nil
}

// read reads the next message, once it is known not to be too large.
func (b *busConn) read() (*dbus.Message, error) {
	head, err := b.reader.Peek(busHead)
	if err != nil {
		return nil, b.broken(err)
	}
	var order binary.ByteOrder = binary.LittleEndian
	if head[0] == 'B' {
		order = binary.BigEndian
	}
	if body, fields := uint64(order.Uint32(head[4:])), uint64(order.Uint32(head[12:])); body+fields > maxBusBytes {
		return nil, fmt.Errorf("a message of %d bytes", body+fields)
	}
	message, err := dbus.DecodeMessage(b.reader)
	if err != nil {
		return nil, b.broken(err)
	}
	return message, nil
}

// broken returns why there is no further message.
func (b *busConn) broken(err error) error {
	switch {
	case b.left.N <= 0:
		return fmt.Errorf("more than %d bytes", maxBusBytes)
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	}
	return err
}

func asReply(message *dbus.Message) busReply {
	if message.Type != dbus.TypeError {
		return busReply{body: message.Body}
	}
	name, _ := message.Headers[dbus.FieldErrorName].Value().(string)
	return busReply{err: dbus.Error{Name: name, Body: message.Body}}
}

// isBusError reports whether somebody answered with one of these errors, of D-Bus or of systemd.
func isBusError(err error, names ...string) bool {
	var answer dbus.Error
	if !errors.As(err, &answer) {
		return false
	}
	for _, name := range names {
		if answer.Name == "org.freedesktop.DBus.Error."+name || answer.Name == systemdInterface+name {
			return true
		}
	}
	return false
}
