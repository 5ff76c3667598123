package systemd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// Messages of D-Bus, as far as a few questions to systemd need them:
// https://dbus.freedesktop.org/doc/dbus-specification.html#message-protocol. All values are aligned to their size,
// counted from the beginning of the message.
//
//	l 01 02 01   byte order, type, flags, version
//	u32 u32      bytes of the body, serial
//	a(yv)        header fields, each aligned to 8
//	…            body, aligned to 8, of the types that the header field SIGNATURE names

const (
	busHead = 16 // bytes, up to and with the length of the header fields

	busMethodCall  = 1 // types of messages
	busMethodReply = 2
	busError       = 3

	busFieldPath        = 1 // header fields
	busFieldInterface   = 2
	busFieldMember      = 3
	busFieldErrorName   = 4
	busFieldReplySerial = 5
	busFieldDestination = 6
	busFieldSignature   = 8
)

// busCall is a call of a method. Arguments are strings and lists of strings.
type busCall struct {
	destination, path, face, member string

	args []any // string, []string
}

// encode appends the call to out, which is empty or ends where a message may begin.
func (c busCall) encode(out []byte, serial uint32) []byte {
	body, signature := busWriter{}, ""
	for _, arg := range c.args {
		switch arg := arg.(type) {
		case string:
			signature += "s"
			body.text(arg)
		case []string:
			signature += "as"
			body.list(arg)
		}
	}
	const noAutoStart = 2
	head := busWriter{'l', busMethodCall, noAutoStart, 1}
	head.number(uint32(len(body))) //nolint:gosec // some hundred bytes
	head.number(serial)
	head.number(0) // length of the fields, below
	head.field(busFieldPath, "o", c.path)
	head.field(busFieldInterface, "s", c.face)
	head.field(busFieldMember, "s", c.member)
	head.field(busFieldDestination, "s", c.destination)
	if signature != "" {
		head.align(8)
		head = append(head, busFieldSignature, 1, 'g', 0, byte(len(signature)))
		head = append(append(head, signature...), 0)
	}
	binary.LittleEndian.PutUint32(head[12:], uint32(len(head)-busHead)) //nolint:gosec // some hundred bytes
	head.align(8)
	return append(append(out, head...), body...)
}

// busWriter is a message, or the body of one, that is being written.
type busWriter []byte

func (w *busWriter) align(n int) {
	for len(*w)%n != 0 {
		*w = append(*w, 0)
	}
}

func (w *busWriter) number(n uint32) {
	w.align(4)
	*w = binary.LittleEndian.AppendUint32(*w, n)
}

func (w *busWriter) text(s string) {
	w.number(uint32(len(s))) //nolint:gosec // of our own
	*w = append(append(*w, s...), 0)
}

func (w *busWriter) list(texts []string) {
	w.number(0)
	at := len(*w)
	for _, text := range texts {
		w.text(text)
	}
	binary.LittleEndian.PutUint32((*w)[at-4:], uint32(len(*w)-at)) //nolint:gosec // of our own
}

func (w *busWriter) field(code byte, kind, value string) {
	w.align(8)
	*w = append(*w, code, 1, kind[0], 0)
	w.text(value)
}

// busMessage is one message that was received.
type busMessage struct {
	kind      byte
	path      string // of the object that a signal is from
	member    string // name of a signal
	replyTo   uint32 // serial of the call that it answers; 0: none
	errorName string
	signature string // of body
	body      busReader
}

// busSize returns how many bytes a message takes that begins with head.
func busSize(head []byte) (int, error) {
	order, err := busOrder(head)
	if err != nil {
		return 0, err
	}
	fields, body := uint64(order.Uint32(head[12:])), uint64(order.Uint32(head[4:]))
	if fields > maxBusBytes || body > maxBusBytes {
		return 0, fmt.Errorf("a message of %d bytes", fields+body)
	}
	return busHead + int(fields+7)&^7 + int(body), nil //nolint:gosec // bounded
}

func busOrder(head []byte) (binary.ByteOrder, error) {
	switch {
	case len(head) < busHead:
		return nil, errBusShort
	case head[3] != 1:
		return nil, fmt.Errorf("a message of protocol version %d", head[3])
	case head[0] == 'l':
		return binary.LittleEndian, nil
	case head[0] == 'B':
		return binary.BigEndian, nil
	}
	return nil, fmt.Errorf("a message of byte order %q", head[0])
}

// parseBusMessage parses one whole message, of busSize.
func parseBusMessage(data []byte) (busMessage, error) {
	order, err := busOrder(data)
	if err != nil {
		return busMessage{}, err
	}
	m := busMessage{kind: data[1]}
	r := busReader{data: data, order: order, at: busHead - 4}
	end := int(r.number()) + busHead
	for r.err == nil && r.at < end {
		r.align(8)
		m.field(&r)
	}
	r.align(8)
	if r.err != nil {
		return busMessage{}, r.err
	}
	m.body = busReader{data: data[r.at:], order: order}
	return m, nil
}

// field takes one header field.
func (m *busMessage) field(r *busReader) {
	code, kind := r.octet(), r.signature()
	switch kind {
	case "u":
		if n := r.number(); code == busFieldReplySerial {
			m.replyTo = n
		}
	case "s", "o":
		text := r.text()
		switch code {
		case busFieldPath:
			m.path = hosterr.Clip(text)
		case busFieldMember:
			m.member = hosterr.Clip(text)
		case busFieldErrorName:
			m.errorName = text
		}
	case "g":
		if text := r.signature(); code == busFieldSignature {
			m.signature = text
		}
	default:
		r.fail(fmt.Errorf("header field %d of type %q", code, hosterr.Clip(strings.ToValidUTF8(kind, "?"))))
	}
}

var errBusShort = errors.New("a message that ends too early")

// busReader reads values one after the other. After an error all that follows is zero.
type busReader struct {
	data  []byte
	order binary.ByteOrder
	at    int
	err   error // the first
}

func (r *busReader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// take returns the next n bytes; n zero bytes where there are fewer, and n is small.
func (r *busReader) take(n uint64) []byte {
	if r.err != nil || n > uint64(len(r.data)-r.at) {
		r.fail(errBusShort)
		return make([]byte, min(n, 8))
	}
	r.at += int(n) //nolint:gosec // bounded by len
	return r.data[r.at-int(n) : r.at]
}

func (r *busReader) align(n int) {
	if over := r.at % n; over != 0 {
		r.take(uint64(n - over)) //nolint:gosec // positive
	}
}

func (r *busReader) octet() byte { return r.take(1)[0] }

func (r *busReader) number() uint32 {
	r.align(4)
	return r.order.Uint32(r.take(4))
}

func (r *busReader) long() uint64 {
	r.align(8)
	return r.order.Uint64(r.take(8))
}

func (r *busReader) text() string {
	length := uint64(r.number())
	return strings.ToValidUTF8(strings.TrimSuffix(string(r.take(length+1)), "\x00"), "?")
}

func (r *busReader) signature() string {
	length := uint64(r.octet())
	return strings.TrimSuffix(string(r.take(length+1)), "\x00")
}

// end returns where an array ends whose length comes next, and whose elements are aligned to 8 bytes or to 4.
func (r *busReader) end(align int) int {
	length := uint64(r.number())
	r.align(align)
	if r.err != nil || length > uint64(len(r.data)-r.at) {
		r.fail(errBusShort)
		return 0
	}
	return r.at + int(length) //nolint:gosec // bounded by len
}
