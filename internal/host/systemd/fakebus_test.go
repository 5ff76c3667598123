package systemd

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
)

// fakeBus is a socket that answers as systemd does, or as a test requires.
type fakeBus struct {
	auth    string                           // answer to AUTH EXTERNAL; "OK 1\r\n" unless set
	answer  func(call *dbus.Message) []any   // of one call: its values, or a dbus.Error
	called  func(conn net.Conn, call string) // after the answer
	replies []byte                           // instead of the answer to the first call other than AddMatch, and then the end
	twice   bool                             // sends each answer twice, and a signal before it
	hang    bool                             // after the handshake
}

// listen serves connections until the test ends, and returns the paths of a systemd there.
func (f fakeBus) listen(t *testing.T) systemdPaths {
	t.Helper()
	dir := t.TempDir()
	p := systemdPaths{booted: dir, private: filepath.Join(dir, "private"), bus: filepath.Join(dir, "bus"),
		within: time.Minute}
	listener, err := net.Listen("unix", p.private)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				f.serve(conn)
			}()
		}
	}()
	return p
}

// handshake is systemd's: data that arrives together with BEGIN is left until more arrives, so a client should send
// BEGIN together with the data before it.
func (f fakeBus) handshake(conn net.Conn) bool {
	if f.auth == "" {
		f.auth = "OK 0123456789abcdef\r\n"
	}
	buffer := make([]byte, 4096)
	for _, want := range []string{"\x00", "AUTH\r\n", "AUTH EXTERNAL 30\r\nBEGIN\r\n"} {
		n, err := io.ReadFull(conn, buffer[:min(len(want), len(buffer))])
		if err != nil || !strings.EqualFold(string(buffer[:n]), want) {
			return false
		}
		if want == "AUTH\r\n" {
			_, _ = io.WriteString(conn, "REJECTED EXTERNAL ANONYMOUS\r\n")
		}
	}
	// A signal right after the answer must neither be lost nor disturb later messages.
	_, _ = conn.Write(append([]byte(f.auth), signal("/", "org.example.Fake", "Greeting")...))
	return strings.HasPrefix(f.auth, "OK")
}

func (f fakeBus) serve(conn net.Conn) {
	if !f.handshake(conn) {
		return
	}
	reader := bufio.NewReader(conn)
	if f.hang {
		_, _ = io.Copy(io.Discard, reader)
		return
	}
	for {
		call, err := dbus.DecodeMessage(reader)
		if err != nil {
			return
		}
		member := call.Headers[dbus.FieldMember].Value().(string)
		if f.replies != nil && member != "AddMatch" {
			_, _ = conn.Write(f.replies)
			return
		}
		reply := f.reply(call, member)
		if f.twice {
			reply = bytes.Join([][]byte{signal("/", "org.example.Fake", "Twice", "x"), reply, reply}, nil)
		}
		if _, err := conn.Write(reply); err != nil {
			return
		}
		if f.called != nil {
			f.called(conn, member)
		}
	}
}

// reply answers the standard calls that every bus supports.
func (f fakeBus) reply(call *dbus.Message, member string) []byte {
	values := []any{}
	switch {
	case member == "Hello":
		values = []any{":1.1"}
	case member == "AddMatch":
	case f.answer != nil:
		values = f.answer(call)
	}
	m := &dbus.Message{Type: dbus.TypeMethodReply, Body: values, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(call.Serial())}}
	if len(values) == 1 {
		if failure, ok := values[0].(dbus.Error); ok {
			m.Type, m.Body = dbus.TypeError, nil
			m.Headers[dbus.FieldErrorName] = dbus.MakeVariant(failure.Name)
		}
	}
	return encode(m)
}

func encode(m *dbus.Message) []byte {
	if len(m.Body) > 0 {
		m.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(m.Body...))
	}
	var out bytes.Buffer
	if err := m.EncodeTo(&out, binary.LittleEndian); err != nil {
		panic(err) // a mistake of the test
	}
	return out.Bytes()
}

func signal(path, face, member string, body ...any) []byte {
	return encode(&dbus.Message{Type: dbus.TypeSignal, Body: body, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath: dbus.MakeVariant(dbus.ObjectPath(path)), dbus.FieldInterface: dbus.MakeVariant(face),
		dbus.FieldMember: dbus.MakeVariant(member), dbus.FieldSender: dbus.MakeVariant(busName)}})
}
