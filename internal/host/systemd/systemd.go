// Package systemd reads units with go-systemd, and watches them. go-systemd and godbus read and write through a socket
// of this package (bus.go), which bounds the data and drops messages that they cannot handle (message.go).
package systemd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// Systemd is the interface to the service manager:
// https://www.freedesktop.org/software/systemd/man/latest/org.freedesktop.systemd1.html
type Systemd struct {
	// Units returns the failed units and the services that run or wait to be restarted. If another service manager
	// runs, the error is ErrNotConfigured. An error that wraps ErrSystemdSilent means that systemd itself does not
	// answer.
	Units func(ctx context.Context) (Units, error)
	// PodUnits returns the units that may belong to a pod; the same errors.
	PodUnits func(ctx context.Context) ([]PodUnit, error)
	// Service returns the state of one service; the same errors.
	Service func(ctx context.Context, name string) (Service, error)
	// LoadState returns systemd's word for whether it could load the file of a unit: loaded, not-found, masked …; the same
	// errors.
	LoadState func(ctx context.Context, unit string) (string, error)
}

// ErrSystemdSilent means that systemd is the service manager, but does not answer.
var ErrSystemdSilent = errors.New("does not answer")

// Units is one answer of systemd.
type Units struct {
	Failed  []Unit `json:"failed"`  // by name
	Omitted int    `json:"omitted"` // number of further failed units, which were not queried
	Running []Unit `json:"running"` // services
}

// Unit is one unit of systemd. Fields that an older systemd does not have are zero.
type Unit struct {
	Name   string `json:"name"`   // kubelet.service
	Active string `json:"active"` // failed, active, activating …
	Sub    string `json:"sub"`    // running, auto-restart …: depends on the type

	// Of failed units.
	Since       time.Time `json:"since"`       // start of this state, by the wall clock
	Transient   bool      `json:"transient"`   // made by a program at run time (systemd-run, containerd), without a file
	TriggeredBy []string  `json:"triggeredBy"` // timers, sockets and paths that start it

	// Of failed units and of those waiting to be restarted.
	Result string `json:"result"` // exit-code, signal, timeout, oom-kill …
	// how the main process of a service ended: CLD_EXITED (1) and the like; 0: not ended, or no process
	Code   int32 `json:"code"`
	Status int32 `json:"status"` // exit code or signal

	// Of services that run or wait to be restarted.
	// NRestarts: by systemd itself since the last other start; since systemd 235
	Restarts uint32 `json:"restarts"`
}

// systemdPaths are the paths and the limit for reaching systemd.
type systemdPaths struct {
	booted  string        // a directory that exists if systemd is the service manager: sd_booted(3)
	private string        // systemd's own socket, for root
	bus     string        // the system's message bus: for signals, and for calls if systemd has no socket of its own
	within  time.Duration // for all calls together
}

const (
	systemdName = "org.freedesktop.systemd1"
	busName     = "org.freedesktop.DBus"

	// systemdTimeout bounds all calls together. PID 1 answers them within milliseconds.
	systemdTimeout = 5 * time.Second
	// maxFailedUnits bounds the failed units whose properties are read, not just their names.
	maxFailedUnits = 100
	// maxServices bounds the services whose restarts are read; a node has some 50.
	maxServices = 1000
)

// NewSystemd returns the client of the service manager of this machine. A connection lasts for one call only: systemd
// sends all its signals to every client of its own socket, whether wanted or not, and a hundred starting pods cause
// thousands.
func NewSystemd() Systemd { return realSystemd().client() }

func realSystemd() systemdPaths {
	return systemdPaths{"/run/systemd/system", "/run/systemd/private", "/run/dbus/system_bus_socket", systemdTimeout}
}

func (p systemdPaths) client() Systemd {
	return Systemd{
		Units: func(ctx context.Context) (Units, error) { return askUnits(ctx, p, systemdQuery.units) },
		PodUnits: func(ctx context.Context) ([]PodUnit, error) {
			return askUnits(ctx, p, systemdQuery.podUnits)
		},
		Service: func(ctx context.Context, name string) (Service, error) {
			return askUnits(ctx, p, func(q systemdQuery) (Service, error) { return q.service(name) })
		},
		LoadState: func(ctx context.Context, unit string) (string, error) {
			return askUnits(ctx, p, func(q systemdQuery) (string, error) { return q.loadState(unit) })
		},
	}
}

// askUnits makes a query over a new connection.
func askUnits[T any](ctx context.Context, p systemdPaths, query func(systemdQuery) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, p.within)
	defer cancel()
	answer, err := connected(ctx, p, query)
	if err != nil && ctx.Err() != nil || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EAGAIN) {
		err = fmt.Errorf("%w: %w", ErrSystemdSilent, err)
	}
	if err != nil {
		var none T
		return none, fmt.Errorf("systemd: %w", err)
	}
	return answer, nil
}

func connected[T any](ctx context.Context, p systemdPaths, query func(systemdQuery) (T, error)) (none T, err error) {
	var stat unix.Stat_t
	err = unix.Lstat(p.booted, &stat)
	if errors.Is(err, unix.ENOENT) {
		return none, fmt.Errorf("%w: there is no %s", hosterr.ErrNotConfigured, p.booted)
	}
	if err != nil {
		return none, fmt.Errorf("%s: %w", p.booted, err)
	}
	to := &peer{path: p.private}
	if _, err := os.Lstat(p.private); errors.Is(err, fs.ErrNotExist) {
		to = &peer{path: p.bus, hello: true}
	}
	conn, err := to.connect(ctx)
	if err != nil {
		return none, err
	}
	defer conn.Close()
	return query(systemdQuery{ctx, to, conn})
}

// systemdQuery makes calls over one connection.
type systemdQuery struct {
	ctx  context.Context
	peer *peer
	conn *systemd.Conn
}

func (q systemdQuery) units() (Units, error) {
	failed, err := q.list([]string{"failed"}, nil)
	if err != nil {
		return Units{}, err
	}
	// Units that wait to be restarted are in state activating. Pods are slices and scopes, which are not listed.
	running, err := q.list([]string{"active", "activating", "deactivating", "reloading"}, []string{"*.service"})
	if err != nil {
		return Units{}, err
	}
	// A service that ran once is not restarted.
	running = slices.DeleteFunc(running, func(u systemd.UnitStatus) bool { return u.SubState == "exited" })
	if len(running) > maxServices {
		return Units{}, fmt.Errorf("more than %d services run", maxServices)
	}
	slices.SortFunc(failed, func(a, b systemd.UnitStatus) int { return strings.Compare(a.Name, b.Name) })
	units := Units{Omitted: max(0, len(failed)-maxFailedUnits)}
	if units.Failed, err = q.describe(failed[:len(failed)-units.Omitted], func(u systemd.UnitStatus) []string {
		return append([]string{"Unit.StateChangeTimestamp", "Unit.Transient", "Unit.TriggeredBy"}, endProperties(u)...)
	}); err != nil {
		return Units{}, err
	}
	units.Running, err = q.describe(running, func(u systemd.UnitStatus) []string {
		if strings.HasPrefix(u.SubState, "auto-restart") {
			return append([]string{"Service.NRestarts"}, endProperties(u)...)
		}
		return []string{"Service.NRestarts"}
	})
	return units, err
}

// endProperties names the properties that describe how a unit ended.
func endProperties(u systemd.UnitStatus) []string {
	kind := u.Name[strings.LastIndexByte(u.Name, '.')+1:]
	switch kind {
	case "service":
		return []string{"Service.Result", "Service.ExecMainCode", "Service.ExecMainStatus"}
	case "mount", "automount", "swap", "socket", "timer", "path", "scope":
		return []string{strings.ToUpper(kind[:1]) + kind[1:] + ".Result"}
	}
	return nil
}

// list lists the loaded units in one of the states whose names match one of the patterns (path.Match); none means all.
func (q systemdQuery) list(states, patterns []string) ([]systemd.UnitStatus, error) {
	units, err := q.conn.ListUnitsByPatternsContext(q.ctx, states, patterns)
	if isBusFailure(q.peer.explain(err), "UnknownMethod") { // before systemd 230
		units, err = q.conn.ListUnitsFilteredContext(q.ctx, states)
	}
	if err != nil {
		return nil, fmt.Errorf("list units: %w", q.peer.explain(err))
	}
	return slices.DeleteFunc(units, func(u systemd.UnitStatus) bool {
		return len(patterns) > 0 && !strings.HasSuffix(u.Name, ".service")
	}), nil
}

// describe reads the properties of units that wanted returns. It leaves out units that are gone meanwhile.
func (q systemdQuery) describe(listed []systemd.UnitStatus,
	wanted func(systemd.UnitStatus) []string) ([]Unit, error) {
	units := make([]Unit, 0, len(listed))
	for _, status := range listed {
		u, err := q.describeUnit(status, wanted(status))
		switch {
		case isBusFailure(err, "UnknownObject", "NoSuchUnit"):
		case err != nil:
			return nil, fmt.Errorf("unit %s: %w", u.Name, err)
		default:
			units = append(units, u)
		}
	}
	return units, nil
}

func (q systemdQuery) describeUnit(status systemd.UnitStatus, properties []string) (Unit, error) {
	u := Unit{Name: text(status.Name), Active: text(status.ActiveState), Sub: text(status.SubState)}
	for _, name := range properties {
		kind, property, _ := strings.Cut(name, ".")
		answer, err := q.conn.GetUnitTypePropertyContext(q.ctx, status.Name, kind, property)
		if err == nil {
			err = u.set(property, answer.Value)
		}
		err = q.peer.explain(err)
		if err != nil && !isBusFailure(err, "UnknownProperty", "UnknownInterface") { // an older systemd
			return u, fmt.Errorf("%s: %w", property, err)
		}
	}
	return u, nil
}

// maxTriggers bounds the triggers stored for one unit.
const maxTriggers = 10

// set stores one property.
func (u *Unit) set(property string, v dbus.Variant) (err error) {
	switch property {
	case "StateChangeTimestamp": // microseconds since 1970; 0: never
		var since uint64
		if since, err = valueOf[uint64](v); since > 0 && since < 1<<62 {
			u.Since = time.UnixMicro(int64(since)).UTC()
		}
	case "Transient":
		u.Transient, err = valueOf[bool](v)
	case "TriggeredBy":
		var names []string
		names, err = valueOf[[]string](v)
		for _, name := range names[:min(len(names), maxTriggers)] {
			u.TriggeredBy = append(u.TriggeredBy, text(name))
		}
	case "Result":
		u.Result, err = valueOf[string](v)
		u.Result = text(u.Result)
	case "ExecMainCode":
		u.Code, err = valueOf[int32](v)
	case "ExecMainStatus":
		u.Status, err = valueOf[int32](v)
	case "NRestarts":
		u.Restarts, err = valueOf[uint32](v)
	}
	return err
}

func valueOf[T any](v dbus.Variant) (T, error) {
	value, ok := v.Value().(T)
	if !ok {
		return value, fmt.Errorf("of type %q, want %q", hosterr.Clip(v.Signature().String()), dbus.SignatureOf(value))
	}
	return value, nil
}

// text bounds a stored text.
func text(s string) string { return hosterr.Clip(strings.ToValidUTF8(s, "?")) }

// PodUnit is a unit that kubelet or the runtime may have made for a pod. Its texts are valid UTF-8.
type PodUnit struct {
	Name        string // kubepods-besteffort-pod….slice, cri-containerd-….scope, run-….scope, ….mount
	Description string // of a mount: its mount point
	Active, Sub string
}

// maxPodUnits bounds the list. A node has some units for each of its pods.
const maxPodUnits = 20_000

// podUnits lists the slices of pods and the scopes of kubelet's mounts in any state, but the scopes of containers and
// mounts only if they are not active: active ones are numerous, and visible by their cgroup or mount.
func (q systemdQuery) podUnits() ([]PodUnit, error) {
	var units []PodUnit
	for _, list := range []struct{ states, patterns []string }{
		{[]string{}, []string{"*kubepods*.slice", "run-*.scope"}},
		{[]string{"inactive", "failed"}, []string{"cri-containerd-*.scope", "crio-*.scope", "*-pods-*.mount"}},
	} {
		listed, err := q.conn.ListUnitsByPatternsContext(q.ctx, list.states, list.patterns)
		if err != nil { // systemd before 230 has no such call
			return nil, fmt.Errorf("list units of pods: %w", q.peer.explain(err))
		}
		if len(units)+len(listed) > maxPodUnits {
			return nil, fmt.Errorf("list units of pods: more than %d", maxPodUnits)
		}
		for _, u := range listed {
			if u.LoadState == "not-found" {
				continue // only mentioned by another unit
			}
			units = append(units, PodUnit{Name: text(u.Name), Description: text(u.Description),
				Active: text(u.ActiveState), Sub: text(u.SubState)})
		}
	}
	return units, nil
}
