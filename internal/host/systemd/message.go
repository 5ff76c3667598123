package systemd

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/godbus/dbus/v5"
)

// Messages that must not reach godbus (5.2.4), which dispatches them in its own goroutine: a panic there would end the
// agent.

// readMessage reads one complete message:
//
//	l 01 02 01   byte order, type, flags, version
//	u32 u32 u32  bytes of the body, serial, bytes of the header fields
//	…            header fields, aligned to 8, and the body
//
// https://dbus.freedesktop.org/doc/dbus-specification.html#message-protocol
func readMessage(r *bufio.Reader) ([]byte, error) {
	const fixed = 16
	head, err := r.Peek(fixed)
	if err != nil {
		return nil, err
	}
	var order binary.ByteOrder = binary.LittleEndian
	switch head[0] {
	case 'l':
	case 'B':
		order = binary.BigEndian
	default:
		return nil, fmt.Errorf("a message of byte order %q", head[0])
	}
	size := fixed + (uint64(order.Uint32(head[12:]))+7)&^7 + uint64(order.Uint32(head[4:]))
	if size > maxBusBytes {
		return nil, fmt.Errorf("a message of %d bytes", size)
	}
	message := make([]byte, size)
	if _, err := io.ReadFull(r, message); err != nil {
		return nil, err
	}
	if hasEmptyStruct(message) {
		return nil, errors.New("a message with an empty structure")
	}
	return message, nil
}

// hasEmptyStruct reports whether a message contains a signature with an empty structure, which D-Bus forbids: godbus
// would read an array of them forever. A signature is a length byte and as many types; text that only resembles one has
// a zero there.
func hasEmptyStruct(message []byte) bool {
	empty := []byte("()")
	for at := bytes.Index(message, empty); at >= 0; {
		first, end := at, at+len(empty)
		for first > max(0, at-255) && isType(message[first-1]) {
			first--
		}
		for end < min(len(message), at+255) && isType(message[end]) {
			end++
		}
		for start := max(first, 1); start <= at; start++ {
			if last := start + int(message[start-1]); last >= at+len(empty) && last <= end {
				return true
			}
		}
		next := bytes.Index(message[at+1:], empty)
		if next < 0 {
			return false
		}
		at += 1 + next
	}
	return false
}

func isType(b byte) bool { return bytes.IndexByte([]byte("ybnqiuxtdsogvah(){}"), b) >= 0 }

// dropUnexpected is called with a message before it is dispatched, and clears the type of those on which godbus would
// panic or act: a signal of the bus about names without a name, and calls to the agent.
func dropUnexpected(m *dbus.Message) {
	named := len(m.Body) > 0
	if named {
		_, named = m.Body[0].(string)
	}
	sender, _ := m.Headers[dbus.FieldSender].Value().(string)
	if m.Type == dbus.TypeMethodCall || m.Type == dbus.TypeSignal && sender == busName && !named {
		m.Type = 0
	}
}
