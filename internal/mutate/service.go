package mutate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	hostsystemd "github.com/nodeagent/nodeagent/internal/host/systemd"
)

// ServiceRun is one run of a service, as inspected.
type ServiceRun struct {
	Name       string
	MainPID    int
	Invocation string
}

// jobs are the requests to systemd.
type jobs interface {
	// Run restarts or starts a unit, and returns systemd's result of the job.
	Run(ctx context.Context, verb jobVerb, unit string) (result string, err error)
	// ResetFailed clears the failed state of a unit.
	ResetFailed(ctx context.Context, unit string) error
}

type jobVerb string

const (
	jobRestart jobVerb = "restart"
	jobStart   jobVerb = "start"
)

// RestartService restarts a service, or starts one that has failed, if it is still in the inspected run, no job is
// queued for it, and only its main process would be killed (KillMode=process). A job that is queued meanwhile is not
// replaced.
func (d *Mutator) RestartService(ctx context.Context, run ServiceRun) error {
	if !isService(run.Name) {
		return refuse("%q is not the name of a service", run.Name)
	}
	if d.host.Systemd.Service == nil {
		return hosterr.ErrNotConfigured
	}
	now, err := d.host.Systemd.Service(ctx, run.Name)
	if err != nil {
		return notBegun(err)
	}
	switch {
	case now.MainPID != run.MainPID || now.Invocation != run.Invocation:
		return changed("%s has main process %d in run %q instead of %d in %q", run.Name, now.MainPID, now.Invocation,
			run.MainPID, run.Invocation)
	case now.Job:
		return refuse("systemd has a job for %s already", run.Name)
	case now.Active != "active" && now.Active != "failed":
		return refuse("%s is %s", run.Name, now.Active)
	case now.KillMode != "process":
		return refuse("the KillMode of %s is %s: a restart would end all that runs in its cgroup", run.Name, now.KillMode)
	case len(now.Changes) > 0 || len(now.Dependents) > 0 || now.StopRuns:
		return refuse("a restart of %s would do more than restart it now: %s", run.Name,
			strings.Join(slices.Concat(now.Changes, now.Dependents), "; "))
	}
	result, err := d.jobs.Run(ctx, jobRestart, run.Name)
	if err == nil && result != "done" {
		err = fmt.Errorf("systemd says %q", result)
	}
	if err != nil {
		return fmt.Errorf("restart %s: %w", run.Name, err)
	}
	return nil
}

// ResetFailedUnit clears a failed transient unit: there is no file that could start it again.
func (d *Mutator) ResetFailedUnit(ctx context.Context, name string) error {
	units, err := host.Ask(ctx, "systemd", d.host.Systemd.Units)
	if err != nil {
		return notBegun(err)
	}
	for _, u := range units.Failed {
		if u.Name != name {
			continue
		}
		if !u.Transient {
			return refuse("%s is not transient", name)
		}
		if err := ignoreMissing(d.jobs.ResetFailed(ctx, name)); err != nil {
			return fmt.Errorf("reset-failed %s: %w", name, err)
		}
		return nil
	}
	return changed("%s has not failed", name)
}

// MayLoadModule returns why a kernel module could not be loaded, as far as is known without trying: its name is malformed,
// systemd is not there or has no service for it, or the kernel loads no more modules, or has none on the disk.
func (d *Mutator) MayLoadModule(ctx context.Context, name string) error {
	if name == "" || len(name) > 64 || strings.Trim(name,
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != "" {
		return refuse("%q is not the name of a kernel module", name)
	}
	if why := d.noModules(); why != "" {
		return refuse("%s", why)
	}
	if d.host.Systemd.LoadState == nil {
		return refuse("there is no systemd, which loads modules for the agent")
	}
	unit := modprobeUnit(name)
	state, err := d.host.Systemd.LoadState(ctx, unit)
	switch {
	case errors.Is(err, hosterr.ErrNotConfigured):
		return refuse("there is no systemd, which loads modules for the agent: %v", err)
	case err != nil:
		return err
	case state != "loaded":
		return refuse("systemd's %s is %s: systemd 245 or later has it", unit, state)
	}
	return nil
}

func modprobeUnit(name string) string { return "modprobe@" + name + ".service" }

// noModules returns why this kernel loads no module at all; empty where that is not known, and it would be tried.
func (d *Mutator) noModules() string {
	const disabled = "/proc/sys/kernel/modules_disabled"
	if value, err := d.host.Files.Text(disabled); err == nil && value == "1" {
		return "no kernel module can be loaded until the next boot: " + disabled + " is 1"
	}
	release, err := d.host.Files.Text("/proc/sys/kernel/osrelease")
	if err != nil {
		return ""
	}
	file := "/lib/modules/" + release + "/modules.dep"
	if _, err := d.host.Files.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return "the modules of the kernel that runs are not installed: there is no " + file
	}
	return ""
}

// LoadModule has systemd load a kernel module by its own service for that (modprobe@.service, since systemd 245), so
// that the agent needs no right to load modules.
func (d *Mutator) LoadModule(ctx context.Context, name string) error {
	if err := d.MayLoadModule(ctx, name); err != nil {
		return notBegun(err)
	}
	unit := modprobeUnit(name)
	result, err := d.jobs.Run(ctx, jobStart, unit)
	if err == nil && result != "done" {
		err = fmt.Errorf("systemd says %q", result)
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", unit, err)
	}
	return nil
}

// isService reports whether systemd can read a name only as that of a service.
func isService(name string) bool {
	base, ok := strings.CutSuffix(name, ".service")
	return ok && base != "" && len(name) < 256 && strings.Trim(base,
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:-_.@\\") == ""
}

// systemdJobs sends the requests to systemd.
type systemdJobs struct{}

func (systemdJobs) Run(ctx context.Context, verb jobVerb, unit string) (string, error) {
	connection, err := hostsystemd.Connect(ctx)
	if err != nil {
		return "", notBegun(fmt.Errorf("systemd: %w", err))
	}
	defer connection.Close()
	begin := (*systemd.Conn).RestartUnitContext
	if verb == jobStart {
		begin = (*systemd.Conn).StartUnitContext
	}
	ended := make(chan string, 1) // one result
	if _, err := begin(connection, ctx, unit, "fail", ended); err != nil {
		return "", refusedJob(err)
	}
	select {
	case result := <-ended:
		return result, nil
	case <-ctx.Done():
		return "", fmt.Errorf("the job has not ended: %w", ctx.Err())
	}
}

func (systemdJobs) ResetFailed(ctx context.Context, unit string) error {
	connection, err := hostsystemd.Connect(ctx)
	if err != nil {
		return notBegun(fmt.Errorf("systemd: %w", err))
	}
	defer connection.Close()
	return refusedJob(connection.ResetFailedUnitContext(ctx, unit))
}

// refusedJob returns systemd's own refusal as one: it answers with an error only where it has queued no job. No answer is
// no refusal.
func refusedJob(err error) error {
	var answer dbus.Error
	own := errors.As(err, &answer) && (strings.HasPrefix(answer.Name, "org.freedesktop.systemd1.") ||
		answer.Name == "org.freedesktop.DBus.Error.AccessDenied")
	if own && !errors.As(ignoreMissing(err), &answer) {
		return err // the unit is gone, which the caller judges
	}
	if own {
		return refuse("systemd: %v", err)
	}
	return err
}
