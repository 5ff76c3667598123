package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// Systemd is what the service manager says: https://www.freedesktop.org/wiki/Software/systemd/dbus/
type Systemd struct {
	// Units returns the units that have failed and the services that have something running, or wait to be started again.
	// Where another service manager runs, the error is ErrNotConfigured. One that wraps syscall.ECONNREFUSED or
	// os.ErrDeadlineExceeded tells that systemd itself does not answer.
	Units func(ctx context.Context) (Units, error)
}

// Units is one answer of systemd.
type Units struct {
	Failed  []Unit `json:"failed"`
	Omitted int    `json:"omitted"` // more have failed, of which nothing else was asked
	Running []Unit `json:"running"` // services
}

// Unit is one unit of systemd.
type Unit struct {
	Name   string    `json:"name"`   // kubelet.service
	Active string    `json:"active"` // failed, active, activating …
	Sub    string    `json:"sub"`    // running, auto-restart …: depends on the type
	Since  time.Time `json:"since"`  // when it came into this state, by the wall clock; of failed units

	Transient bool   `json:"transient"` // made by a program while it ran (systemd-run, containerd), of no file; of failed units
	Result    string `json:"result"`    // exit-code, signal, timeout, oom-kill …; of failed units and of those that are to be started again
	Code      int32  `json:"code"`      // how the main process of a service ended: CLD_EXITED and the like; 0: not, or there was none
	Status    int32  `json:"status"`    // exit code or signal
	Restarts  uint32 `json:"restarts"`  // NRestarts: by systemd itself since somebody else has started it; of services
}

// Where systemd is.
type systemdPaths struct {
	booted  string // a directory that is there when systemd is the service manager: sd_booted(3)
	private string // systemd's own socket, for root
	bus     string // the system's message bus, where systemd has none of its own
}

const (
	systemdName      = "org.freedesktop.systemd1"
	systemdManager   = dbus.ObjectPath("/org/freedesktop/systemd1")
	systemdInterface = systemdName + "." // Manager, Unit, Service …
	busName          = "org.freedesktop.DBus"

	// maxFailedUnits bounds of how many failed units more is asked than their names.
	maxFailedUnits = 100
	// maxServices bounds of how many services the restarts are asked for; a node has some 50.
	maxServices = 1000
)

// NewSystemd returns the door to the service manager of this machine. A connection lives as long as one call: systemd sends
// all its signals to whoever is connected to its own socket, whether wanted or not, and a hundred pods that start make
// thousands.
func NewSystemd() Systemd {
	return systemdPaths{"/run/systemd/system", "/run/systemd/private", "/run/dbus/system_bus_socket"}.door()
}

func (p systemdPaths) door() Systemd {
	return Systemd{Units: func(ctx context.Context) (Units, error) {
		units, err := p.units(ctx)
		if err != nil {
			return Units{}, fmt.Errorf("systemd: %w", err)
		}
		return units, nil
	}}
}

func (p systemdPaths) units(ctx context.Context) (Units, error) {
	var stat unix.Stat_t
	if err := unix.Lstat(p.booted, &stat); err != nil {
		return Units{}, fmt.Errorf("%w: %s: %w", ErrNotConfigured, p.booted, err)
	}
	conn, err := dialBus(ctx, p.private)
	if errors.Is(err, unix.ENOENT) {
		if conn, err = dialBus(ctx, p.bus); err == nil {
			if _, err = conn.ask(busName, busCall{path: "/org/freedesktop/DBus", name: busName + ".Hello"}); err != nil {
				err = errors.Join(err, conn.close())
			}
		}
	}
	if err != nil {
		return Units{}, err
	}
	units, err := (systemdAsk{conn}).units()
	return units, errors.Join(err, conn.close())
}

// systemdAsk asks over one connection.
type systemdAsk struct{ conn *busConn }

// busUnit is one unit as ListUnitsByPatterns tells it.
type busUnit struct {
	Name, Description, Load, Active, Sub, Followed string

	Path    dbus.ObjectPath
	JobID   uint32
	JobType string
	JobPath dbus.ObjectPath
}

func (a systemdAsk) units() (Units, error) {
	failed, err := a.list([]string{"failed"}, []string{})
	if err != nil {
		return Units{}, err
	}
	// What waits to be started again is in the state activating. Pods are slices and scopes, which are not listed.
	running, err := a.list([]string{"active", "activating", "deactivating", "reloading"}, []string{"*.service"})
	if err != nil {
		return Units{}, err
	}
	// What has run once is not started again.
	running = slices.DeleteFunc(running, func(u busUnit) bool { return u.Sub == "exited" })
	if len(running) > maxServices {
		return Units{}, fmt.Errorf("more than %d services run", maxServices)
	}
	units := Units{Omitted: max(0, len(failed)-maxFailedUnits)}
	if units.Failed, err = a.describe(failed[:len(failed)-units.Omitted], func(u busUnit) []string {
		return append([]string{"Unit.StateChangeTimestamp", "Unit.Transient"}, u.endProperties()...)
	}); err != nil {
		return Units{}, err
	}
	units.Running, err = a.describe(running, func(u busUnit) []string {
		if strings.HasPrefix(u.Sub, "auto-restart") {
			return append([]string{"Service.NRestarts"}, u.endProperties()...)
		}
		return []string{"Service.NRestarts"}
	})
	return units, err
}

// list lists the loaded units in one of the states whose names match one of the patterns; none stands for all.
func (a systemdAsk) list(states, patterns []string) ([]busUnit, error) {
	replies, err := a.conn.ask(systemdName, busCall{systemdManager, systemdInterface + "Manager.ListUnitsByPatterns", []any{states, patterns}})
	if err == nil {
		err = replies[0].err
	}
	var units []busUnit
	if err == nil {
		err = dbus.Store(replies[0].body, &units)
	}
	if err != nil {
		return nil, fmt.Errorf("list units: %w", err)
	}
	return units, nil
}

// endProperties tell how a unit ended.
func (u busUnit) endProperties() []string {
	kind := strings.TrimPrefix(u.Name[max(strings.LastIndexByte(u.Name, '.'), 0):], ".")
	if kind == "" {
		return nil
	}
	kind = strings.ToUpper(kind[:1]) + kind[1:]
	if kind == "Service" {
		return []string{"Service.Result", "Service.ExecMainCode", "Service.ExecMainStatus"}
	}
	return []string{kind + ".Result"}
}

// describe asks properties of units, those that wanted names. Units that are gone meanwhile are left out.
func (a systemdAsk) describe(listed []busUnit, wanted func(busUnit) []string) ([]Unit, error) {
	var calls []busCall
	var names []string
	var of []int // index of the unit
	for i, u := range listed {
		for _, name := range wanted(u) {
			kind, property, _ := strings.Cut(name, ".")
			calls = append(calls, busCall{u.Path, busName + ".Properties.Get", []any{systemdInterface + kind, property}})
			names, of = append(names, property), append(of, i)
		}
	}
	replies, err := a.conn.ask(systemdName, calls...)
	if err != nil {
		return nil, err
	}
	units, gone := make([]Unit, len(listed)), make([]bool, len(listed))
	for i, u := range listed {
		units[i] = Unit{Name: clip(strings.ToValidUTF8(u.Name, "?")), Active: u.Active, Sub: u.Sub}
	}
	for i, reply := range replies {
		switch err := units[of[i]].set(names[i], reply); {
		case isBusError(err, "UnknownObject", "NoSuchUnit"):
			gone[of[i]] = true
		case isBusError(err, "UnknownProperty", "UnknownInterface"): // an older systemd, or a type of unit that has none
		case err != nil:
			return nil, fmt.Errorf("unit %s: %s: %w", units[of[i]].Name, names[i], err)
		}
	}
	var there []Unit
	for i, unit := range units {
		if !gone[i] {
			there = append(there, unit)
		}
	}
	return there, nil
}

// set takes one property.
func (u *Unit) set(property string, reply busReply) error {
	if reply.err != nil {
		return reply.err
	}
	var since uint64 // microseconds since 1970
	into := map[string]any{
		"StateChangeTimestamp": &since, "Transient": &u.Transient, "Result": &u.Result,
		"ExecMainCode": &u.Code, "ExecMainStatus": &u.Status, "NRestarts": &u.Restarts,
	}[property]
	var value dbus.Variant
	err := dbus.Store(reply.body, &value)
	if err == nil {
		err = dbus.Store([]any{value.Value()}, into)
	}
	if err == nil && since > 0 {
		u.Since = time.UnixMicro(int64(since)) //nolint:gosec // of this epoch
	}
	return err
}
