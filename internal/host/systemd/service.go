package systemd

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Service is the state of one service, as systemd reports it before a restart. Its texts are valid UTF-8.
type Service struct {
	Name       string
	Load       string // loaded, not-found, masked …
	Active     string // active, activating, failed, inactive …
	Sub        string // running, auto-restart …
	Job        bool   // one is queued
	MainPID    int    // 0: none
	Invocation string // ID of this run, in hexadecimal; empty if systemd does not know it (before 232)
	KillMode   string // control-group, mixed, process, none: which processes a stop kills
	// since the last change of state or start of the main process, whichever is later; 0: never
	Age           time.Duration
	ManualAllowed bool     // systemd starts and stops it for whoever asks: neither RefuseManualStart= nor RefuseManualStop=
	StopRuns      bool     // it has ExecStop= or ExecStopPost=: programs that run when it is stopped
	StartRuns     []string // programs that run before and after its main one: ExecStartPre= and the like
	Dependents    []string // units that are active and that systemd would stop or restart with it
	Changes       []string // what a restart changes besides its processes: see changes
	Processes     []int    // in its cgroup and below
}

// maxDependents bounds the dependent units to query.
const maxDependents = 100

// service queries one service.
func (q systemdQuery) service(name string) (Service, error) {
	s := Service{Name: name}
	unit, err := q.conn.GetUnitPropertiesContext(q.ctx, name)
	if err != nil {
		return s, fmt.Errorf("unit %s: %w", text(name), q.peer.explain(err))
	}
	of, err := q.conn.GetUnitTypePropertiesContext(q.ctx, name, "Service")
	if err != nil {
		return s, fmt.Errorf("service %s: %w", text(name), q.peer.explain(err))
	}
	var problems []error
	s.Load = need[string](&problems, unit, "LoadState")
	s.Active = need[string](&problems, unit, "ActiveState")
	s.Sub = need[string](&problems, unit, "SubState")
	s.KillMode = need[string](&problems, of, "KillMode")
	s.MainPID = int(need[uint32](&problems, of, "MainPID"))
	if job := need[[]any](&problems, unit, "Job"); len(job) > 0 {
		id, _ := job[0].(uint32)
		s.Job = id != 0
	}
	if id, err := field[[]byte](unit, "InvocationID"); err == nil {
		s.Invocation = fmt.Sprintf("%x", id)
	}
	s.Age = sinceLast(need[uint64](&problems, unit, "StateChangeTimestampMonotonic"),
		need[uint64](&problems, of, "ExecMainStartTimestampMonotonic"))
	refused := need[bool](&problems, unit, "RefuseManualStart")
	s.ManualAllowed = !need[bool](&problems, unit, "RefuseManualStop") && !refused
	for _, command := range []string{"ExecStop", "ExecStopPost"} {
		s.StopRuns = len(need[[][]any](&problems, of, command)) > 0 || s.StopRuns
	}
	s.StartRuns, err = startRuns(of)
	problems = append(problems, err)
	s.Changes, err = changes(unit, of)
	problems = append(problems, err)
	if err := errors.Join(problems...); err != nil {
		return s, fmt.Errorf("service %s: %w", text(name), err)
	}
	if s.Dependents, err = q.dependents(unit); err != nil {
		return s, fmt.Errorf("service %s: %w", text(name), err)
	}
	s.Processes, err = q.processes(name)
	return s, err
}

// loadState asks for one property only: systemd tries to load the unit for that, and forgets it again.
func (q systemdQuery) loadState(unit string) (string, error) {
	property, err := q.conn.GetUnitPropertyContext(q.ctx, unit, "LoadState")
	if err != nil {
		return "", fmt.Errorf("unit %s: %w", text(unit), q.peer.explain(err))
	}
	state, err := valueOf[string](property.Value)
	if err != nil {
		return "", fmt.Errorf("unit %s: LoadState %w", text(unit), err)
	}
	return text(state), nil
}

func field[T any](properties map[string]any, name string) (T, error) {
	value, ok := properties[name].(T)
	if !ok {
		return value, fmt.Errorf("%s is a %T, want %T", name, properties[name], value)
	}
	return value, nil
}

// need is field for a property that every systemd has: without it, the problem is one more.
func need[T any](problems *[]error, properties map[string]any, name string) T {
	value, err := field[T](properties, name)
	*problems = append(*problems, err)
	return value
}

// sinceLast returns the time since the later of the times, which systemd counts in microseconds of CLOCK_MONOTONIC; 0
// means never.
func sinceLast(state, start uint64) time.Duration {
	last := max(state, start)
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil || last == 0 || last > 1<<53 {
		return 0 // the clock is always there
	}
	return time.Duration(now.Nano()) - time.Duration(last)*time.Microsecond //nolint:gosec // bounded above
}

// dependents returns the units that are not inactive and that systemd stops or restarts with this one: systemd.unit(5),
// Requires=, Requisite=, BindsTo=, PartOf=, PropagatesStopTo=.
func (q systemdQuery) dependents(unit map[string]any) ([]string, error) {
	var names []string
	for _, relation := range []string{"RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf", "PropagatesStopTo"} {
		more, err := field[[]string](unit, relation)
		if _, known := unit[relation]; relation == "PropagatesStopTo" && !known {
			continue // since systemd 249
		}
		if err != nil {
			return nil, err
		}
		names = append(names, more...)
	}
	if len(names) == 0 {
		return nil, nil
	}
	if len(names) > maxDependents {
		return nil, fmt.Errorf("%d units depend on it, more than %d", len(names), maxDependents)
	}
	units, err := q.conn.ListUnitsByNamesContext(q.ctx, names)
	if err != nil {
		return nil, fmt.Errorf("units that depend on it: %w", q.peer.explain(err))
	}
	var active []string
	for _, u := range units {
		if u.ActiveState != "inactive" && u.ActiveState != "failed" {
			active = append(active, text(u.Name))
		}
	}
	slices.Sort(active)
	return slices.Compact(active), nil
}

// maxProcesses bounds the processes listed for one unit.
const maxProcesses = 10_000

// processes lists the processes in the cgroup of a unit and below it, as systemd itself sees them; since systemd 231.
func (q systemdQuery) processes(name string) ([]int, error) {
	conn, err := q.peer.dial(q.ctx) // go-systemd has no such call
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var answer []struct {
		Cgroup  string
		PID     uint32
		Command string
	}
	call := conn.Object(systemdName, "/org/freedesktop/systemd1").CallWithContext(q.ctx,
		systemdName+".Manager.GetUnitProcesses", 0, name)
	if err := call.Store(&answer); err != nil {
		return nil, fmt.Errorf("processes of %s: %w", text(name), q.peer.explain(err))
	}
	if len(answer) > maxProcesses {
		return nil, fmt.Errorf("processes of %s: more than %d", text(name), maxProcesses)
	}
	pids := make([]int, 0, len(answer))
	for _, process := range answer {
		pids = append(pids, int(process.PID))
	}
	return pids, nil
}

// startRuns returns the programs that systemd runs at a start besides the main one.
func startRuns(of map[string]any) (programs []string, err error) {
	for _, property := range []string{"ExecCondition", "ExecStartPre", "ExecStartPost"} {
		if _, known := of[property]; property == "ExecCondition" && !known {
			continue // since systemd 243
		}
		commands, err := field[[][]any](of, property)
		if err != nil {
			return nil, err
		}
		for _, command := range commands {
			if len(command) == 0 {
				return nil, fmt.Errorf("%s has a command without a path", property)
			}
			program, _ := command[0].(string)
			programs = append(programs, text(program)+" ("+property+"=)")
		}
	}
	return programs, nil
}

// changes returns the effects of a restart besides its processes. systemd removes a runtime directory when the service
// stops (systemd.exec(5), RuntimeDirectoryPreserve=), and may reboot the machine or start other units when the service
// ends, fails or is started too often (systemd.unit(5)).
func changes(unit, of map[string]any) (all []string, err error) {
	directories, err := field[[]string](of, "RuntimeDirectory")
	if err != nil {
		return nil, err
	}
	preserved, _ := of["RuntimeDirectoryPreserve"].(string) // since systemd 235: without it, it is removed
	if len(directories) > 0 && preserved != "yes" && preserved != "restart" {
		for _, directory := range directories {
			all = append(all, fmt.Sprintf("RuntimeDirectory=%s without RuntimeDirectoryPreserve=: systemd would remove "+
				"/run/%[1]s with all that is in it", text(directory)))
		}
	}
	for action, optional := range map[string]bool{"FailureAction": false, "StartLimitAction": false, "SuccessAction": true,
		"JobTimeoutAction": true} { // the last two since systemd 236 and 216
		value, err := field[string](unit, action)
		if err != nil { // before systemd 230 and 236 it was the service's
			value, err = field[string](of, action)
		}
		if err != nil && !optional {
			return nil, err
		}
		if value != "" && value != "none" {
			all = append(all, fmt.Sprintf("%s=%s", action, text(value)))
		}
	}
	for _, relation := range []string{"OnFailure", "OnSuccess"} {
		if units, err := field[[]string](unit, relation); err == nil && len(units) > 0 {
			all = append(all, fmt.Sprintf("%s=%s", relation, text(strings.Join(units, " "))))
		} else if err != nil && relation == "OnFailure" { // the other one since systemd 249
			return nil, err
		}
	}
	slices.Sort(all)
	return all, nil
}
