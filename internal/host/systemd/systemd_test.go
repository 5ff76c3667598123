package systemd

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// statuses are units in systemd's list: name, active, sub.
func statuses(units ...[3]string) []any {
	list := []systemd.UnitStatus{}
	for _, u := range units {
		list = append(list, systemd.UnitStatus{Name: u[0], Description: "described", LoadState: "loaded",
			ActiveState: u[1], SubState: u[2], Path: "/org/freedesktop/systemd1/unit/x", JobPath: "/"})
	}
	return []any{list}
}

func failure(name string) []any { return []any{dbus.Error{Name: "org.freedesktop.DBus.Error." + name}} }

func variant(value any) []any { return []any{dbus.MakeVariant(value)} }

// wellBehaved answers for one failed unit and one that is restarted again and again.
func wellBehaved(call *dbus.Message) []any {
	first, second := callTexts(call)
	switch {
	case first == "failed":
		return statuses([3]string{"b.service", "failed", "failed"}, [3]string{"a.mount", "failed", "failed"},
			[3]string{"gone.scope", "failed", "failed"})
	case first == "active":
		return statuses([3]string{"loop.service", "activating", "auto-restart"},
			[3]string{"once.service", "active", "exited"})
	case second == "StateChangeTimestamp":
		return variant(uint64(1_700_000_000_000_000))
	case second == "Transient":
		return variant(true)
	case second == "TriggeredBy":
		return variant([]string{"b.timer"})
	case second == "Result" && strings.HasSuffix(first, "Scope"):
		return failure("UnknownObject")
	case second == "Result":
		return variant("exit-code")
	case second == "ExecMainCode":
		return variant(int32(1))
	case second == "ExecMainStatus":
		return variant(int32(203))
	case second == "NRestarts":
		return variant(uint32(41))
	}
	return failure("UnknownMethod")
}

// callTexts returns the first text of the first two arguments.
func callTexts(call *dbus.Message) (first, second string) {
	switch arg := call.Body[0].(type) {
	case []string:
		return arg[0], ""
	case string:
		second, _ = call.Body[1].(string)
		return arg, second
	}
	return "", ""
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

	got, err := fakeBus{answer: wellBehaved}.listen(t).client().Units(t.Context())
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}

	got, err = fakeBus{answer: wellBehaved, twice: true}.listen(t).client().Units(t.Context())
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("answers twice: error %v (-want +got):\n%s", err, diff)
	}

	old := func(call *dbus.Message) []any { // 219: knows no patterns and no NRestarts
		_, property := callTexts(call)
		switch {
		case call.Headers[dbus.FieldMember].Value() == "ListUnitsByPatterns":
			return failure("UnknownMethod")
		case property == "NRestarts":
			return failure("UnknownProperty")
		}
		return wellBehaved(call)
	}
	want.Running[0].Restarts = 0
	got, err = fakeBus{answer: old}.listen(t).client().Units(t.Context())
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("old systemd: error %v (-want +got):\n%s", err, diff)
	}
}

func TestSystemdManyFailed(t *testing.T) {
	many := func(call *dbus.Message) []any {
		if first, _ := callTexts(call); first == "failed" {
			var units [][3]string
			for i := range maxFailedUnits + 20 {
				units = append(units, [3]string{string(rune('a'+i%26)) + "-" + strings.Repeat("x", i) + ".target",
					"failed", "failed"})
			}
			return statuses(units...)
		}
		return wellBehaved(call)
	}
	got, err := fakeBus{answer: many}.listen(t).client().Units(t.Context())
	if err != nil || len(got.Failed) != maxFailedUnits || got.Omitted != 20 {
		t.Errorf("%d units, %d omitted, %v", len(got.Failed), got.Omitted, err)
	}
}

func TestSystemdBroken(t *testing.T) {
	reply := encode(&dbus.Message{Type: dbus.TypeMethodReply, Body: []any{strings.Repeat("text", 1<<18)},
		Headers: map[dbus.HeaderField]dbus.Variant{dbus.FieldReplySerial: dbus.MakeVariant(uint32(99))}})
	huge := bytes.Clone(reply)
	binary.LittleEndian.PutUint32(huge[4:], 1<<31)
	tests := []struct {
		name string
		bus  fakeBus
		want string // part of the error
	}{
		{"refused handshake", fakeBus{auth: "REJECTED EXTERNAL\r\n"}, "authentication failed"},
		{"not D-Bus", fakeBus{auth: "HTTP/1.1 400 Bad Request\r\n"}, "private: "},
		{"closed", fakeBus{replies: []byte{}}, "unexpected EOF"},
		{"cut off", fakeBus{replies: reply[:len(reply)-2]}, "unexpected EOF"},
		{"garbage", fakeBus{replies: bytes.Repeat([]byte("garbage "), 10)}, "a message of byte order 'g'"},
		{"huge", fakeBus{replies: huge}, "a message of 21"},
		{"endless replies", fakeBus{replies: bytes.Repeat(reply, 20)}, "more than 16777216 bytes"},
		{"another type", fakeBus{answer: func(*dbus.Message) []any { return []any{"text"} }}, "list units: "},
		{"a failure", fakeBus{answer: func(*dbus.Message) []any { return failure("AccessDenied") }}, "AccessDenied"},
		{"a property of another type", fakeBus{answer: func(call *dbus.Message) []any {
			if _, property := callTexts(call); property == "NRestarts" {
				return variant("many")
			}
			return wellBehaved(call)
		}}, `unit loop.service: NRestarts: of type "s", want "u"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := tt.bus.listen(t).client().Units(t.Context())
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
	if _, err := p.client().Units(ctx); !errors.Is(err, ErrSystemdSilent) {
		t.Errorf("hangs: %v", err)
	}
	p.private = filepath.Join(p.booted, "closed")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: p.private, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	listener.Close()
	if _, err := p.client().Units(t.Context()); !errors.Is(err, ErrSystemdSilent) {
		t.Errorf("nobody listens: %v", err)
	}
	p.private = filepath.Join(p.booted, "none")
	if _, err := p.client().Units(t.Context()); err == nil || errors.Is(err, ErrSystemdSilent) ||
		!strings.Contains(err.Error(), p.bus) {
		t.Errorf("neither socket: %v", err)
	}
	p.booted += "/none"
	if _, err := p.client().Units(t.Context()); !errors.Is(err, hosterr.ErrNotConfigured) {
		t.Errorf("no systemd: %v", err)
	}
}

// A signal about names without a name makes godbus panic, in its own goroutine.
func TestSystemdSignalWithoutName(t *testing.T) {
	for _, body := range [][]any{nil, {uint32(7)}} {
		bus := fakeBus{answer: wellBehaved, called: func(conn net.Conn, _ string) {
			for _, member := range []string{"NameLost", "NameAcquired"} {
				_, _ = conn.Write(signal("/org/freedesktop/DBus", busName, member, body...))
			}
		}}
		if units, err := connected(t.Context(), bus.listen(t), systemdQuery.units); err != nil || len(units.Failed) != 2 {
			t.Errorf("%+v, %v", units, err)
		}
	}
}
