package systemd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// systemd reports failing services on the system's message bus:
//
//	PropertiesChanged("org.freedesktop.systemd1.Service", {"Result": "exit-code", …}, [])   of a service, whenever its state changes
//	JobRemoved(7, "/org/…/job/7", "data.mount", "failed")                                     when something could not be started
//
// https://www.freedesktop.org/software/systemd/man/latest/org.freedesktop.systemd1.html. The agent subscribes to no
// other signals: those about the scopes, slices and mounts of pods, some ten for each pod, do not reach the agent.
// systemd's own socket would send them all, and would make PID 1 write every signal once more.

// WatchSystemd calls changed after a service has failed, is about to be restarted after a failure, or works again after
// a reported failure, and after any failed start of a unit. It ends with ctx and then returns nil. After each call it
// leaves the bus for a while, a second at first and half a minute while there is always something to report, so that a
// service that starts and ends a hundred times a second costs nothing, here or in the bus. If there is no systemd or no
// bus, it waits for them.
func WatchSystemd(ctx context.Context, changed func()) error {
	w := systemdWatch{paths: realSystemd(), gap: time.Second, longest: 30 * time.Second, failing: map[string]bool{}}
	return w.run(ctx, changed)
}

type systemdWatch struct {
	paths        systemdPaths
	gap, longest time.Duration // between two connections

	mu      sync.Mutex      // guards failing: the reader of the last connection may not have ended yet
	failing map[string]bool // paths of units on the bus whose failure was reported
}

// maxFailingUnits bounds the remembered units.
const maxFailingUnits = 1000

func (w *systemdWatch) run(ctx context.Context, changed func()) error {
	gap := w.gap
	for again := false; ctx.Err() == nil; again = true {
		if !w.paths.exist() {
			rest(ctx, w.longest)
			continue
		}
		var began time.Time
		err := w.connection(ctx, func() {
			began = time.Now()
			if again {
				changed() // for changes meanwhile
			}
		})
		if ctx.Err() != nil {
			return nil //nolint:nilerr // asked to end
		}
		lasted := time.Since(began)
		if err != nil && (began.IsZero() || lasted < w.gap) {
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

// exist reports whether systemd and the bus exist.
func (p systemdPaths) exist() bool {
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

// connection lasts until a signal matters, or until there were so many that a check is due anyway. An error means that
// it could not be made, or broke.
func (w *systemdWatch) connection(ctx context.Context, made func()) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	limit := time.AfterFunc(w.paths.within, end)
	bus := &peer{path: w.paths.bus, hello: true, endless: true}
	filter := &signalFilter{watch: w, found: make(chan struct{}, 1)} // the first is enough
	conn, err := bus.dial(ctx, dbus.WithSignalHandler(filter))
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := subscribe(ctx, conn); err != nil {
		return bus.explain(err)
	}
	if !limit.Stop() {
		return fmt.Errorf("no answer within %s", w.paths.within)
	}
	made()
	select {
	case <-filter.found:
		return nil
	case <-conn.Context().Done():
	}
	select {
	case <-filter.found: // before it broke
		return nil
	default:
		return bus.explain(conn.Context().Err())
	}
}

// subscribe subscribes to the signals.
func subscribe(ctx context.Context, conn *dbus.Conn) error {
	from := dbus.WithMatchSender(systemdName)
	var err error
	for _, result := range []string{"failed", "timeout", "dependency"} {
		err = errors.Join(err, conn.AddMatchSignalContext(ctx, from, dbus.WithMatchInterface(systemdName+".Manager"),
			dbus.WithMatchMember("JobRemoved"), dbus.WithMatchArg(3, result)))
	}
	return errors.Join(err,
		conn.AddMatchSignalContext(ctx, from, dbus.WithMatchInterface(busName+".Properties"),
			dbus.WithMatchMember("PropertiesChanged"), dbus.WithMatchArg(0, systemdName+".Service")),
		conn.Object(systemdName, "/org/freedesktop/systemd1").CallWithContext(ctx, systemdName+".Manager.Subscribe",
			dbus.FlagNoAutoStart).Err)
}

// A service that succeeds but is restarted all the time matters, too.
const (
	loudSignals = 256
	loudWithin  = 10 * time.Second
)

// signalFilter receives the signals of one connection, one after another, from godbus.
type signalFilter struct {
	watch *systemdWatch
	found chan struct{} // receives one signal that matters
	began time.Time     // of the latest loudSignals
	count int
}

// DeliverSignal implements dbus.SignalHandler.
func (f *signalFilter) DeliverSignal(_, _ string, signal *dbus.Signal) {
	if f.count%loudSignals == 0 {
		f.began = time.Now()
	}
	f.count++
	loud := f.count%loudSignals == 0 && time.Since(f.began) < loudWithin
	if f.watch.matters(signal) || loud {
		select {
		case f.found <- struct{}{}:
		default:
		}
	}
}

// matters reports whether a signal is about a failure or its end.
func (w *systemdWatch) matters(signal *dbus.Signal) bool {
	var changed map[string]dbus.Variant
	switch {
	case signal.Name == systemdName+".Manager.JobRemoved":
		return true
	case signal.Name == busName+".Properties.PropertiesChanged" && len(signal.Body) > 1:
		changed, _ = signal.Body[1].(map[string]dbus.Variant)
	}
	result, _ := changed["Result"].Value().(string)
	path := hosterr.Clip(string(signal.Path))
	w.mu.Lock()
	defer w.mu.Unlock()
	switch failed := result != "" && result != "success"; {
	case failed && len(w.failing) < maxFailingUnits:
		w.failing[path] = true
		return true
	case failed:
		return true
	case result == "success" && w.failing[path]:
		delete(w.failing, path)
		return true
	}
	return false
}
