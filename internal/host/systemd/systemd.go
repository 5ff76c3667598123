// Package systemd reads units over the bus, and watches them.
package systemd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// Systemd is what the service manager says:
// https://www.freedesktop.org/software/systemd/man/latest/org.freedesktop.systemd1.html
type Systemd struct {
	// Units returns the units that have failed and the services that have something running, or wait to be started
	// again. Where another service manager runs, the error is ErrNotConfigured. One that wraps ErrSystemdSilent tells
	// that systemd itself does not answer.
	Units func(ctx context.Context) (Units, error)
}

// ErrSystemdSilent says that systemd is the service manager, and does not answer.
var ErrSystemdSilent = errors.New("does not answer")

// Units is one answer of systemd.
type Units struct {
	Failed  []Unit `json:"failed"`  // by name
	Omitted int    `json:"omitted"` // more have failed, of which nothing else was asked
	Running []Unit `json:"running"` // services
}

// Unit is one unit of systemd. What an older systemd does not know is zero.
type Unit struct {
	Name   string `json:"name"`   // kubelet.service
	Active string `json:"active"` // failed, active, activating …
	Sub    string `json:"sub"`    // running, auto-restart …: depends on the type

	// Of failed units.
	Since       time.Time `json:"since"`       // when it came into this state, by the wall clock
	Transient   bool      `json:"transient"`   // made by a program while it ran (systemd-run, containerd), of no file
	TriggeredBy []string  `json:"triggeredBy"` // timers, sockets and paths that start it

	// Of failed units and of those that are to be started again.
	Result string `json:"result"` // exit-code, signal, timeout, oom-kill …
	// how the main process of a service ended: CLD_EXITED (1) and the like; 0: not, or there was none
	Code   int32 `json:"code"`
	Status int32 `json:"status"` // exit code or signal

	// Of services that run or are to be started again.
	// NRestarts: by systemd itself since somebody else has started it; since systemd 235
	Restarts uint32 `json:"restarts"`
}

// Where systemd is.
type systemdPaths struct {
	booted  string // a directory that is there when systemd is the service manager: sd_booted(3)
	private string // systemd's own socket, for root
	bus     string // the system's message bus, where systemd has none of its own
}

const (
	systemdName = "org.freedesktop.systemd1"
	busName     = "org.freedesktop.DBus"

	// systemdTimeout bounds all questions together. PID 1 answers them within milliseconds.
	systemdTimeout = 5 * time.Second
	// maxFailedUnits bounds of how many failed units more is asked than their names.
	maxFailedUnits = 100
	// maxServices bounds of how many services the restarts are asked for; a node has some 50.
	maxServices = 1000
)

// NewSystemd returns the door to the service manager of this machine. A connection lives as long as one call: systemd
// sends all its signals to whoever is connected to its own socket, whether wanted or not, and a hundred pods that
// start make thousands.
func NewSystemd() Systemd { return realSystemd().door() }

func realSystemd() systemdPaths {
	return systemdPaths{"/run/systemd/system", "/run/systemd/private", "/run/dbus/system_bus_socket"}
}

func (p systemdPaths) door() Systemd {
	return Systemd{Units: func(ctx context.Context) (Units, error) {
		ctx, cancel := context.WithTimeout(ctx, systemdTimeout)
		defer cancel()
		units, err := p.units(ctx)
		if err != nil && ctx.Err() != nil || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EAGAIN) {
			err = fmt.Errorf("%w: %w", ErrSystemdSilent, err)
		}
		if err != nil {
			return Units{}, fmt.Errorf("systemd: %w", err)
		}
		return units, nil
	}}
}

func (p systemdPaths) units(ctx context.Context) (Units, error) {
	var stat unix.Stat_t
	err := unix.Lstat(p.booted, &stat)
	if errors.Is(err, unix.ENOENT) {
		return Units{}, fmt.Errorf("%w: there is no %s", hosterr.ErrNotConfigured, p.booted)
	}
	if err != nil {
		return Units{}, fmt.Errorf("%s: %w", p.booted, err)
	}
	conn, err := p.dial(ctx)
	if err != nil {
		return Units{}, err
	}
	units, err := systemdAsk{conn}.units()
	return units, errors.Join(err, conn.close())
}

// dial connects to systemd itself, or to the bus.
func (p systemdPaths) dial(ctx context.Context) (*busConn, error) {
	conn, err := dialBus(ctx, p.private)
	if !errors.Is(err, unix.ENOENT) {
		return conn, err
	}
	if conn, err = dialBus(ctx, p.bus); err != nil {
		return nil, err
	}
	hello := busCall{destination: busName, path: "/org/freedesktop/DBus", face: busName, member: "Hello"}
	if _, err := conn.ask(hello); err != nil {
		return nil, errors.Join(err, conn.close())
	}
	return conn, nil
}

// systemdAsk asks over one connection.
type systemdAsk struct{ conn *busConn }

func (a systemdAsk) units() (Units, error) {
	failed, err := a.list([]string{"failed"}, nil)
	if err != nil {
		return Units{}, err
	}
	// What waits to be started again is in the state activating. Pods are slices and scopes, which are not listed.
	running, err := a.list([]string{"active", "activating", "deactivating", "reloading"}, []string{"*.service"})
	if err != nil {
		return Units{}, err
	}
	// What has run once is not started again.
	running = slices.DeleteFunc(running, func(u listedUnit) bool { return u.sub == "exited" })
	if len(running) > maxServices {
		return Units{}, fmt.Errorf("more than %d services run", maxServices)
	}
	slices.SortFunc(failed, func(a, b listedUnit) int { return strings.Compare(a.name, b.name) })
	units := Units{Omitted: max(0, len(failed)-maxFailedUnits)}
	if units.Failed, err = a.describe(failed[:len(failed)-units.Omitted], func(u listedUnit) []string {
		return append([]string{"Unit.StateChangeTimestamp", "Unit.Transient", "Unit.TriggeredBy"}, u.end()...)
	}); err != nil {
		return Units{}, err
	}
	units.Running, err = a.describe(running, func(u listedUnit) []string {
		if strings.HasPrefix(u.sub, "auto-restart") {
			return append([]string{"Service.NRestarts"}, u.end()...)
		}
		return []string{"Service.NRestarts"}
	})
	return units, err
}

// listedUnit is one unit in systemd's list.
type listedUnit struct{ name, active, sub, path string }

// end names the properties that tell how a unit ended.
func (u listedUnit) end() []string {
	kind := u.name[strings.LastIndexByte(u.name, '.')+1:]
	switch kind {
	case "service":
		return []string{"Service.Result", "Service.ExecMainCode", "Service.ExecMainStatus"}
	case "mount", "automount", "swap", "socket", "timer", "path", "scope":
		return []string{strings.ToUpper(kind[:1]) + kind[1:] + ".Result"}
	}
	return nil
}

// list lists the loaded units in one of the states whose names match one of the patterns (path.Match); none stands
// for all.
func (a systemdAsk) list(states, patterns []string) ([]listedUnit, error) {
	manager := busCall{destination: systemdName, path: "/org/freedesktop/systemd1", face: systemdName + ".Manager"}
	manager.member, manager.args = "ListUnitsByPatterns", []any{states, patterns}
	replies, err := a.conn.ask(manager)
	if err == nil && isBusFailure(replies[0].err, "UnknownMethod") { // before systemd 230
		manager.member, manager.args = "ListUnitsFiltered", []any{states}
		replies, err = a.conn.ask(manager)
	}
	if err == nil {
		err = replies[0].err
	}
	if err != nil {
		return nil, fmt.Errorf("list units: %w", err)
	}
	units, err := parseUnits(replies[0].busMessage)
	if err != nil {
		return nil, fmt.Errorf("list units: %w", err)
	}
	return slices.DeleteFunc(units, func(u listedUnit) bool {
		return len(patterns) > 0 && !strings.HasSuffix(u.name, ".service")
	}), nil
}

// parseUnits parses the answer of ListUnits…: name, description, load state, active state, sub state, followed unit,
// path, and the ID, type and path of its job.
func parseUnits(m busMessage) ([]listedUnit, error) {
	if m.signature != "a(ssssssouso)" {
		return nil, fmt.Errorf("of type %q", hosterr.Clip(m.signature))
	}
	r := m.body
	var units []listedUnit
	for end := r.end(8); r.err == nil && r.at < end; {
		r.align(8)
		u := listedUnit{name: hosterr.Clip(r.text())}
		r.text()
		r.text()
		u.active, u.sub = hosterr.Clip(r.text()), hosterr.Clip(r.text())
		r.text()
		u.path = r.text()
		r.number()
		r.text()
		r.text()
		units = append(units, u)
	}
	return units, r.err
}

// describe asks properties of units, those that wanted names. Units that are gone meanwhile are left out.
func (a systemdAsk) describe(listed []listedUnit, wanted func(listedUnit) []string) ([]Unit, error) {
	var calls []busCall
	var of []int // index of the unit
	for i, u := range listed {
		for _, name := range wanted(u) {
			kind, property, _ := strings.Cut(name, ".")
			calls = append(calls, busCall{systemdName, u.path, busName + ".Properties", "Get",
				[]any{systemdName + "." + kind, property}})
			of = append(of, i)
		}
	}
	replies, err := a.conn.ask(calls...)
	if err != nil {
		return nil, err
	}
	units, gone := make([]Unit, len(listed)), make([]bool, len(listed))
	for i, u := range listed {
		units[i] = Unit{Name: u.name, Active: u.active, Sub: u.sub}
	}
	for i, reply := range replies {
		property := calls[i].args[1].(string)
		err := reply.err
		if err == nil {
			err = units[of[i]].set(property, reply.busMessage)
		}
		switch {
		case isBusFailure(err, "UnknownObject", "NoSuchUnit"):
			gone[of[i]] = true
		case isBusFailure(err, "UnknownProperty", "UnknownInterface"): // an older systemd
		case err != nil:
			return nil, fmt.Errorf("unit %s: %s: %w", units[of[i]].Name, property, err)
		}
	}
	there := units[:0]
	for i, unit := range units {
		if !gone[i] {
			there = append(there, unit)
		}
	}
	return there, nil
}
