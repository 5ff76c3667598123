package systemd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// fakeBus is a socket that answers as systemd does, or as a test wants it.
type fakeBus struct {
	auth    string                                  // answer to the handshake; "OK 1\r\n" unless set
	answer  func(call busMessage, out *busReplying) // of one call
	replies []byte                                  // instead of the answer to the first call, and the end
	twice   bool                                    // each answer, and a signal before it
	hang    bool                                    // after the handshake
}

// listen serves connections until the test ends, and returns the paths of a systemd there.
func (f fakeBus) listen(t *testing.T) systemdPaths {
	t.Helper()
	dir := t.TempDir()
	p := systemdPaths{booted: dir, private: filepath.Join(dir, "private"), bus: filepath.Join(dir, "bus")}
	listener, err := net.Listen("unix", p.private)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { listener.Close(); <-done })
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			f.serve(conn)
			conn.Close()
		}
	}()
	return p
}

func (f fakeBus) serve(conn net.Conn) {
	reader := bufio.NewReader(conn)
	for range 2 { // AUTH, BEGIN
		if _, err := reader.ReadString('\n'); err != nil {
			return
		}
	}
	if f.auth == "" {
		f.auth = "OK 0123456789abcdef\r\n"
	}
	_, _ = io.WriteString(conn, f.auth)
	if f.hang {
		_, _ = io.Copy(io.Discard, reader)
		return
	}
	for {
		head, err := reader.Peek(busHead)
		if err != nil {
			return
		}
		size, _ := busSize(head)
		data := make([]byte, size)
		if _, err := io.ReadFull(reader, data); err != nil {
			return
		}
		if f.replies != nil {
			_, _ = conn.Write(f.replies)
			return
		}
		call, _ := parseBusMessage(data)
		out := &busReplying{serial: binary.LittleEndian.Uint32(data[8:])}
		f.answer(call, out)
		reply := out.bytes()
		if f.twice {
			signal := bytes.Clone(reply)
			signal[1] = 4
			reply = slices.Concat(signal, reply, reply)
		}
		if _, err := conn.Write(reply); err != nil {
			return
		}
	}
}

// busReplying is an answer that is being written.
type busReplying struct {
	serial    uint32
	errorName string
	signature string
	body      busWriter
}

func (r *busReplying) bytes() []byte {
	kind := byte(busMethodReply)
	if r.errorName != "" {
		kind = busError
	}
	head := busWriter{'l', kind, 0, 1}
	head.number(uint32(len(r.body)))
	head.number(7)
	head.number(0)
	head = append(head, busFieldReplySerial, 1, 'u', 0)
	head.number(r.serial)
	if r.errorName != "" {
		head.field(busFieldErrorName, "s", r.errorName)
	}
	if r.signature != "" {
		head.align(8)
		head = append(head, busFieldSignature, 1, 'g', 0, byte(len(r.signature)))
		head = append(append(head, r.signature...), 0)
	}
	binary.LittleEndian.PutUint32(head[12:], uint32(len(head)-busHead))
	head.align(8)
	return append(head, r.body...)
}

// units answers a list of units: name, active, sub.
func (r *busReplying) units(units ...[3]string) {
	r.signature = "a(ssssssouso)"
	r.body.number(0)
	r.body.align(8)
	at := len(r.body)
	for _, u := range units {
		r.body.align(8)
		for _, text := range []string{u[0], "described", "loaded", u[1], u[2], "", "/org/freedesktop/systemd1/unit/" +
			u[0]} {
			r.body.text(text)
		}
		r.body.number(0)
		r.body.text("")
		r.body.text("/")
	}
	binary.LittleEndian.PutUint32(r.body, uint32(len(r.body)-at))
}

// variant begins the answer of Properties.Get.
func (r *busReplying) variant(kind string) {
	r.signature = "v"
	r.body = append(append(busWriter{byte(len(kind))}, kind...), 0)
}

// wellBehaved answers for one unit that has failed and one that is started again and again.
func wellBehaved(call busMessage, out *busReplying) {
	first, second := callTexts(call)
	switch {
	case first == "failed":
		out.units([3]string{"b.service", "failed", "failed"}, [3]string{"a.mount", "failed", "failed"},
			[3]string{"gone.scope", "failed", "failed"})
	case first == "active":
		out.units([3]string{"loop.service", "activating", "auto-restart"}, [3]string{"once.service", "active",
			"exited"})
	case second == "StateChangeTimestamp":
		out.variant("t")
		out.body.align(8)
		out.body = binary.LittleEndian.AppendUint64(out.body, 1_700_000_000_000_000)
	case second == "Transient":
		out.variant("b")
		out.body.number(1)
	case second == "TriggeredBy":
		out.variant("as")
		out.body.list([]string{"b.timer"})
	case second == "Result" && strings.HasSuffix(first, "Scope"):
		out.errorName = "org.freedesktop.DBus.Error.UnknownObject"
	case second == "Result":
		out.variant("s")
		out.body.text("exit-code")
	case second == "ExecMainCode":
		out.variant("i")
		out.body.number(1)
	case second == "ExecMainStatus":
		out.variant("i")
		out.body.number(203)
	case second == "NRestarts":
		out.variant("u")
		out.body.number(41)
	default:
		out.errorName = "org.freedesktop.DBus.Error.UnknownMethod"
	}
}

// callTexts returns the first text of the first two arguments.
func callTexts(call busMessage) (first, second string) {
	r := call.body
	if strings.HasPrefix(call.signature, "as") {
		r.end(4)
		return r.text(), ""
	}
	return r.text(), r.text()
}

func TestSystemdUnits(t *testing.T) {
	since := time.UnixMicro(1_700_000_000_000_000).UTC()
	failed := Unit{Active: "failed", Sub: "failed", Since: since, Transient: true, TriggeredBy: []string{"b.timer"},
		Result: "exit-code"}
	a, b := failed, failed
	a.Name, b.Name = "a.mount", "b.service"
	b.Code, b.Status = 1, 203
	loop := Unit{Name: "loop.service", Active: "activating", Sub: "auto-restart", Result: "exit-code", Code: 1,
		Status: 203, Restarts: 41}
	want := Units{Failed: []Unit{a, b}, Running: []Unit{loop}}

	got, err := fakeBus{answer: wellBehaved}.listen(t).door().Units(t.Context())
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}

	got, err = fakeBus{answer: wellBehaved, twice: true}.listen(t).door().Units(t.Context())
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("answers twice: error %v (-want +got):\n%s", err, diff)
	}

	old := func(call busMessage, out *busReplying) { // 219: knows no patterns and no NRestarts
		_, property := callTexts(call)
		switch {
		case call.signature == "asas":
			out.errorName = "org.freedesktop.DBus.Error.UnknownMethod"
		case property == "NRestarts":
			out.errorName = "org.freedesktop.DBus.Error.UnknownProperty"
		default:
			wellBehaved(call, out)
		}
	}
	want.Running[0].Restarts = 0
	got, err = fakeBus{answer: old}.listen(t).door().Units(t.Context())
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("old systemd: error %v (-want +got):\n%s", err, diff)
	}
}

func TestSystemdManyFailed(t *testing.T) {
	many := func(call busMessage, out *busReplying) {
		if first, _ := callTexts(call); first == "failed" {
			var units [][3]string
			for i := range maxFailedUnits + 20 {
				units = append(units, [3]string{string(rune('a'+i%26)) + "-" + strings.Repeat("x", i) + ".target",
					"failed", "failed"})
			}
			out.units(units...)
			return
		}
		wellBehaved(call, out)
	}
	got, err := fakeBus{answer: many}.listen(t).door().Units(t.Context())
	if err != nil || len(got.Failed) != maxFailedUnits || got.Omitted != 20 {
		t.Errorf("%d units, %d omitted, %v", len(got.Failed), got.Omitted, err)
	}
}

func TestSystemdBroken(t *testing.T) {
	reply := (&busReplying{serial: 1, signature: "s", body: busWriter{0, 0, 0, 0, 0}}).bytes()
	huge := bytes.Clone(reply)
	binary.LittleEndian.PutUint32(huge[4:], 1<<31)
	tests := []struct {
		name string
		bus  fakeBus
		want string // part of the error
	}{
		{"refused handshake", fakeBus{auth: "REJECTED EXTERNAL\r\n"}, `answered "REJECTED EXTERNAL`},
		{"not D-Bus", fakeBus{auth: "HTTP/1.1 400 Bad Request\r\n"}, "HTTP/1.1 400"},
		{"closed", fakeBus{replies: []byte{}}, "unexpected EOF"},
		{"cut off", fakeBus{replies: reply[:len(reply)-2]}, "unexpected EOF"},
		{"garbage", fakeBus{replies: bytes.Repeat([]byte("garbage "), 10)}, "a message of"},
		{"huge", fakeBus{replies: huge}, "bytes"},
		{"endless signals", fakeBus{replies: bytes.Repeat((&busReplying{serial: 99}).bytes(), 1<<20)},
			"more than 16777216 bytes"},
		{"another type", fakeBus{replies: reply}, `list units: of type "s"`},
		{"a failure", fakeBus{answer: func(_ busMessage, out *busReplying) {
			out.errorName = "org.freedesktop.DBus.Error.AccessDenied"
		}}, "AccessDenied"},
		{"a property of another type", fakeBus{answer: func(call busMessage, out *busReplying) {
			if _, property := callTexts(call); property == "NRestarts" {
				out.variant("s")
				out.body.text("many")
				return
			}
			wellBehaved(call, out)
		}}, `unit loop.service: NRestarts: of type "s", want "u"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := tt.bus.listen(t).door().Units(t.Context())
			if err == nil || !strings.Contains(err.Error(), tt.want) || errors.Is(err, ErrSystemdSilent) {
				t.Errorf("error = %v, want %q", err, tt.want)
			}
		})
	}
}

func TestSystemdSilent(t *testing.T) {
	p := fakeBus{hang: true}.listen(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.door().Units(ctx); !errors.Is(err, ErrSystemdSilent) {
		t.Errorf("hangs: %v", err)
	}
	p.private = filepath.Join(p.booted, "closed")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: p.private, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	listener.Close()
	if _, err := p.door().Units(t.Context()); !errors.Is(err, ErrSystemdSilent) {
		t.Errorf("nobody listens: %v", err)
	}
	p.private = filepath.Join(p.booted, "none")
	if _, err := p.door().Units(t.Context()); err == nil || errors.Is(err, ErrSystemdSilent) ||
		!strings.Contains(err.Error(), p.bus) {
		t.Errorf("neither socket: %v", err)
	}
	p.booted += "/none"
	if _, err := p.door().Units(t.Context()); !errors.Is(err, hosterr.ErrNotConfigured) {
		t.Errorf("no systemd: %v", err)
	}
}

func FuzzBusMessage(f *testing.F) {
	reply := &busReplying{serial: 1}
	reply.variant("as")
	reply.body.list([]string{"b.timer"})
	f.Add(reply.bytes())
	list := &busReplying{serial: 1}
	list.units([3]string{"a.service", "active", "running"})
	f.Add(list.bytes())
	f.Add(busCall{"a.b", "/c", "d.e", "F", []any{[]string{"g"}, "h"}}.encode(nil, 3))
	f.Fuzz(func(t *testing.T, data []byte) {
		message, err := parseBusMessage(data)
		_ = systemdWatch{failing: map[string]bool{}}.matters(message)
		if err != nil {
			if diff := cmp.Diff(busMessage{}, message, cmp.AllowUnexported(busMessage{}, busReader{})); diff != "" {
				t.Errorf("a value beside error %v", err)
			}
			return
		}
		if units, err := parseUnits(message); err == nil && len(units) > len(data) {
			t.Errorf("%d units of %d bytes", len(units), len(data))
		}
		for _, property := range []string{"StateChangeTimestamp", "Transient", "TriggeredBy", "Result", "ExecMainCode",
			"NRestarts"} {
			var unit Unit
			_ = unit.set(property, message)
		}
	})
}
