package systemd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// Systemd tells of services that fail, on the system's message bus:
//
//	PropertiesChanged("org.freedesktop.systemd1.Service", {"Result": "exit-code", …}, [])   of a service, whenever its state changes
//	JobRemoved(7, "/org/…/job/7", "data.mount", "failed")                                     when something could not be started
//
// https://www.freedesktop.org/software/systemd/man/latest/org.freedesktop.systemd1.html. The bus is asked to pass on
// nothing else: what systemd says of the scopes, slices and mounts of pods, some ten signals each, does not reach the
// agent. Its own socket would send all that, and would make PID 1 write every signal once more.

// WatchSystemd calls changed after a service has failed, is about to be started again after a failure, or works again
// after one that was told, and after anything could not be started. It ends with ctx and then returns nil. After each
// call it leaves the bus for a while, a second at first and half a minute while there is always something to tell, so
// that a service that starts and ends a hundred times a second costs nothing, here or in the bus. Where there is no
// systemd or no bus, it waits for them.
func WatchSystemd(ctx context.Context, changed func()) error {
	w := systemdWatch{paths: realSystemd(), gap: time.Second, longest: 30 * time.Second, failing: map[string]bool{}}
	return w.run(ctx, changed)
}

type systemdWatch struct {
	paths        systemdPaths
	gap, longest time.Duration   // away from the bus
	failing      map[string]bool // paths of units on the bus whose failure was told
}

// maxFailingUnits bounds what is remembered.
const maxFailingUnits = 1000

func (w systemdWatch) run(ctx context.Context, changed func()) error {
	gap := w.gap
	for away := false; ctx.Err() == nil; away = true {
		if !w.paths.there() {
			rest(ctx, w.longest)
			continue
		}
		conn, err := w.listen(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // asked to end
			}
			return fmt.Errorf("%s: %w", w.paths.bus, err)
		}
		if away {
			changed() // whatever happened meanwhile
		}
		began := time.Now()
		err = w.next(conn)
		_ = conn.close()
		if ctx.Err() != nil {
			return nil //nolint:nilerr // asked to end
		}
		lasted := time.Since(began)
		if err != nil && lasted < w.gap {
			return fmt.Errorf("%s: %w", w.paths.bus, err)
		}
		if lasted > 2*w.longest {
			gap = w.gap
		}
		if err == nil {
			changed()
		}
		rest(ctx, gap)
		gap = min(2*gap, w.longest)
	}
	return nil
}

// there reports whether systemd and the bus are.
func (p systemdPaths) there() bool {
	for _, name := range []string{p.booted, p.bus} {
		if _, err := os.Lstat(name); errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}

func rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// listen connects to the bus and asks for the signals.
func (w systemdWatch) listen(ctx context.Context) (*busConn, error) {
	conn, err := dialBusWithin(ctx, w.paths.bus, systemdTimeout)
	if err != nil {
		return nil, err
	}
	bus := busCall{destination: busName, path: "/org/freedesktop/DBus", face: busName}
	call := func(c busCall, member string, args ...any) busCall {
		c.member, c.args = member, args
		return c
	}
	calls := []busCall{call(bus, "Hello")}
	const from = "type='signal',sender='" + systemdName + "',"
	for _, result := range []string{"failed", "timeout", "dependency"} {
		calls = append(calls, call(bus, "AddMatch", from+"interface='"+systemdName+
			".Manager',member='JobRemoved',arg3='"+result+"'"))
	}
	calls = append(calls,
		call(bus, "AddMatch", from+"interface='"+busName+".Properties',member='PropertiesChanged',arg0='"+systemdName+
			".Service'"),
		call(busCall{destination: systemdName, path: "/org/freedesktop/systemd1", face: systemdName + ".Manager"},
			"Subscribe"))
	replies, err := conn.ask(calls...)
	for _, reply := range replies {
		err = errors.Join(err, reply.err)
	}
	if err == nil {
		err = conn.socket.SetDeadline(time.Time{})
	}
	if err == nil {
		err = ctx.Err() // it may have set a deadline just before
	}
	if err != nil {
		return nil, errors.Join(err, conn.close())
	}
	return conn, nil
}

// A service that ends well and is started again all the time tells a lot, too.
const (
	loudSignals = 256
	loudWithin  = 10 * time.Second
)

// next waits for a signal that matters, or until there are so many that one had better look from time to time.
func (w systemdWatch) next(conn *busConn) error {
	for {
		began := time.Now()
		for range loudSignals {
			conn.left.N = maxBusBytes
			message, err := conn.read()
			if err != nil {
				return err
			}
			if w.matters(message) {
				return nil
			}
		}
		if time.Since(began) < loudWithin {
			return nil
		}
	}
}

// matters reports whether a signal tells of a failure, or of its end.
func (w systemdWatch) matters(m busMessage) bool {
	const signal = 4
	switch {
	case m.kind != signal:
		return false
	case m.member == "JobRemoved":
		return true
	case m.member != "PropertiesChanged" || m.signature != "sa{sv}as":
		return false
	}
	result := changedResult(m.body)
	switch failed := result != "" && result != "success"; {
	case failed && len(w.failing) < maxFailingUnits:
		w.failing[m.path] = true
		return true
	case failed:
		return true
	case result == "success" && w.failing[m.path]:
		delete(w.failing, m.path)
		return true
	}
	return false
}

// changedResult finds the property Result among those that have changed; empty where it is not there. What the others
// hold is not parsed: a text of theirs that looks like it costs a look.
func changedResult(r busReader) string {
	key := append(make([]byte, 4), "Result\x00"...)
	r.order.PutUint32(key, uint32(len("Result")))
	for at := 0; ; at++ {
		found := bytes.Index(r.data[at:], key)
		if found < 0 {
			return ""
		}
		at += found
		value := busReader{data: r.data, order: r.order, at: at + len(key)}
		if kind, text := value.signature(), value.text(); kind == "s" && value.err == nil {
			return hosterr.Clip(text)
		}
	}
}
