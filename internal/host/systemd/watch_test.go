package systemd

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
)

// serviceSignal is about a service's Result, with another property.
func serviceSignal(unit, result string) []byte {
	return signal("/org/freedesktop/systemd1/unit/"+unit, busName+".Properties", "PropertiesChanged",
		systemdName+".Service", map[string]dbus.Variant{"StatusText": dbus.MakeVariant("Result"),
			"Result": dbus.MakeVariant(result)}, []string{})
}

func jobSignal(result string) []byte {
	return signal("/org/freedesktop/systemd1", systemdName+".Manager", "JobRemoved", uint32(7),
		dbus.ObjectPath("/org/freedesktop/systemd1/job/7"), "data.mount", result)
}

// signallingBus is a bus that answers, and then sends its signals to each connection.
type signallingBus struct {
	t         *testing.T
	signals   [][]byte // for each connection; the last for all further ones
	endless   bool     // repeats the last signals
	closes    bool     // closes the connection after them
	connected atomic.Int32
	sent      atomic.Int64
}

func (b *signallingBus) watch() *systemdWatch {
	b.t.Helper()
	dir := b.t.TempDir()
	p := systemdPaths{booted: dir, bus: filepath.Join(dir, "bus"), within: time.Minute}
	listener, err := net.Listen("unix", p.bus)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			n := int(b.connected.Add(1))
			go b.serve(conn, b.signals[min(n, len(b.signals))-1])
		}
	}()
	return &systemdWatch{paths: p, gap: 20 * time.Millisecond, longest: 160 * time.Millisecond,
		failing: map[string]bool{}}
}

// serve answers calls until the watcher has subscribed.
func (b *signallingBus) serve(conn net.Conn, signals []byte) {
	defer conn.Close()
	send := func() {
		for {
			n, err := conn.Write(signals)
			b.sent.Add(int64(n))
			if b.closes {
				conn.Close()
			}
			if err != nil || !b.endless {
				return
			}
		}
	}
	fakeBus{called: func(_ net.Conn, call string) {
		if call == "Subscribe" {
			time.AfterFunc(time.Millisecond, send)
		}
	}}.serve(conn)
}

func TestSystemdSignals(t *testing.T) {
	w := &systemdWatch{failing: map[string]bool{}}
	service := func(unit, result string) *dbus.Signal {
		return &dbus.Signal{Path: dbus.ObjectPath(unit), Name: busName + ".Properties.PropertiesChanged", Body: []any{
			systemdName + ".Service", map[string]dbus.Variant{"Result": dbus.MakeVariant(result)}, []string{}}}
	}
	odd := func(body ...any) *dbus.Signal {
		return &dbus.Signal{Path: "/", Name: busName + ".Properties.PropertiesChanged", Body: body}
	}
	for _, tt := range []struct {
		name   string
		signal *dbus.Signal
		want   bool
	}{
		{"a service starts", service("a", "success"), false},
		{"it fails", service("a", "exit-code"), true},
		{"it fails again", service("a", "signal"), true},
		{"another one ends well", service("b", "success"), false},
		{"it works again", service("a", "success"), true},
		{"and goes on", service("a", "success"), false},
		{"a job fails", &dbus.Signal{Name: systemdName + ".Manager.JobRemoved"}, true},
		{"another signal", &dbus.Signal{Name: systemdName + ".Manager.UnitNew"}, false},
		{"another body", odd("x"), false},
		{"another type", odd("x", "Result"), false},
		{"nothing changed", odd("x", map[string]dbus.Variant{}), false},
		{"Result of another type", odd("x", map[string]dbus.Variant{"Result": dbus.MakeVariant(7)}), false},
	} {
		if got := w.matters(tt.signal); got != tt.want {
			t.Errorf("%s: matters: %t", tt.name, got)
		}
	}
}

func TestWatchSystemd(t *testing.T) {
	bus := &signallingBus{t: t, signals: [][]byte{
		slices.Concat(serviceSignal("a", "success"), serviceSignal("b", "exit-code")), nil,
	}}
	w := bus.watch()
	ctx, cancel := context.WithCancel(t.Context())
	reported, ended := make(chan int32, 10), make(chan error, 1)
	go func() { ended <- w.run(ctx, func() { reported <- bus.connected.Load() }) }()
	if first, second := <-reported, <-reported; first != 1 || second != 2 {
		t.Errorf("reported on connections %d and %d, want 1 and, after being away, 2", first, second)
	}
	cancel()
	if err := <-ended; err != nil || len(reported) != 0 {
		t.Errorf("ended with %v, reported %d times more", err, len(reported))
	}
}

// TestWatchSystemdStorm: a service that fails or starts all the time is reported rarely, and its signals are not read
// meanwhile.
func TestWatchSystemdStorm(t *testing.T) {
	for _, result := range []string{"exit-code", "success"} {
		t.Run(result, func(t *testing.T) {
			bus := &signallingBus{t: t, signals: [][]byte{serviceSignal("a", result)}, endless: true}
			w := bus.watch()
			var reported atomic.Int32
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			began := time.Now()
			if err := w.run(ctx, func() {
				if reported.Add(1) == 10 {
					cancel()
				}
			}); err != nil {
				t.Error(err)
			}
			// 20, 40, 80 and 160 ms away: the fifth connection, two calls for each.
			n, sent, took := reported.Load(), bus.sent.Load(), time.Since(began)
			if n != 10 || took < 300*time.Millisecond || sent > 8<<20 {
				t.Errorf("reported %d times in %s, %d bytes sent", n, took, sent)
			}
			t.Logf("reported %d times, %d connections, %d KiB sent", reported.Load(), bus.connected.Load(),
				bus.sent.Load()>>10)
		})
	}
}

func TestWatchSystemdBroken(t *testing.T) {
	huge := jobSignal("failed")
	binary.LittleEndian.PutUint32(huge[4:], 1<<31)
	for name, tt := range map[string]struct {
		bus  *signallingBus
		want string
	}{
		"garbage": {&signallingBus{signals: [][]byte{bytes.Repeat([]byte("x"), 100)}}, "byte order"},
		"huge":    {&signallingBus{signals: [][]byte{huge}}, "a message of"},
		"cut off": {&signallingBus{signals: [][]byte{jobSignal("failed")[:30]}, closes: true}, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.bus.t = t
			w := tt.bus.watch()
			w.gap = time.Minute // a bus that breaks the connection sooner is useless
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := w.run(ctx, func() { t.Error("reported") })
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), w.paths.bus) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
	w := fakeBus{answer: func(*dbus.Message) []any { return failure("AccessDenied") }}.watch(t)
	if err := w.run(t.Context(), func() {}); err == nil || !strings.Contains(err.Error(), "AccessDenied") {
		t.Errorf("refused: %v", err)
	}
	w = fakeBus{hang: true}.watch(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := w.run(ctx, func() {}); err != nil {
		t.Errorf("ended while it waited: %v", err)
	}
	w.paths.bus += ".none" // no listener, and none expected
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := w.run(ctx, func() { t.Error("reported") }); err != nil {
		t.Errorf("no bus: %v", err)
	}
}

func (f fakeBus) watch(t *testing.T) *systemdWatch {
	p := f.listen(t)
	p.bus = p.private
	return &systemdWatch{paths: p, gap: time.Minute, longest: time.Millisecond, failing: map[string]bool{}}
}
