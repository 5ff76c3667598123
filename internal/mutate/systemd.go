package mutate

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/mount"
	hostsystemd "github.com/nodeagent/nodeagent/internal/host/systemd"
	"github.com/nodeagent/nodeagent/internal/mutate/child"
)

// unitLimit bounds the stop of an empty unit; kubelet also allows 30 seconds.
const unitLimit = 30 * time.Second

// units are the systemd methods needed to stop a unit.
type units interface {
	// ControlGroup returns the cgroup of a slice or scope; empty if systemd has no such unit, or the unit has no
	// cgroup.
	ControlGroup(ctx context.Context, unit string) (string, error)
	// Stop stops a unit and clears its failed state. The result is systemd's result of the job.
	Stop(ctx context.Context, unit string) (result string, err error)
	Close()
}

// stopUnit makes systemd stop the unit of a cgroup: the slice of a pod, or the scope of one of its containers. The name
// of the unit is built from the UID and the container's ID and never taken from a path, because a container chooses the
// names below its own cgroup: system.slice, for example. systemd itself must report that the unit's cgroup is this one;
// otherwise no unit is stopped, and the cgroup is only removed. The cgroup must be empty, because systemd would kill
// its processes.
func (d *Mutator) stopUnit(ctx context.Context, c Cgroup, at cgroupPlace) error {
	if at.Unit == "" || !ofSystemd(at.mount, at.mounts) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, unitLimit)
	defer cancel()
	connection, err := d.systemd(ctx)
	if err != nil {
		return fmt.Errorf("systemd: %w", err)
	}
	if connection == nil {
		return nil // systemd is not init
	}
	defer connection.Close()
	its, err := connection.ControlGroup(ctx, at.Unit)
	if err != nil {
		return fmt.Errorf("cgroup of unit %s: %w", at.Unit, err)
	}
	if its != at.name {
		return nil
	}
	if err := emptyEverywhere(c, at); err != nil {
		if errors.Is(err, errGone) {
			return nil
		}
		return err
	}
	result, err := connection.Stop(ctx, at.Unit)
	if err != nil {
		return fmt.Errorf("stop unit %s: %w", at.Unit, err)
	}
	if result != "done" && result != "skipped" {
		d.log.Warn("systemd did not stop a unit", "unit", at.Unit, "result", result)
	}
	return nil
}

// ofSystemd reports whether systemd keeps its units in a hierarchy: its own one of cgroup v1 if there is one, else v2.
// In the others the same cgroup is only removed, so that systemd is asked once.
func ofSystemd(m mount.Mount, mounts []mount.Mount) bool {
	own := func(m mount.Mount) bool {
		return m.FSType == "cgroup" && slices.Contains(m.SuperOptions, "name=systemd")
	}
	return own(m) || m.FSType == "cgroup2" && !slices.ContainsFunc(mounts, own)
}

// emptyEverywhere makes sure that a cgroup is the evaluated one, and that neither it, nor the cgroup of that name in
// any other hierarchy, contains a process: a process may have been moved in some hierarchies only.
func emptyEverywhere(c Cgroup, at cgroupPlace) error {
	if err := emptyCgroup(at.mount.Point, at.name, &c.File); err != nil {
		return err
	}
	for _, m := range at.mounts {
		if err := emptyCgroup(m.Point, at.name, nil); err != nil && !errors.Is(err, errGone) {
			return err
		}
	}
	return nil
}

func emptyCgroup(point, name string, id *FileID) error {
	fd, err := child.OpenCgroup(point, name, id)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err = child.UnpopulatedTree(fd); errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%s: %w: %w", path.Join(point, name), err, ErrBusy)
	}
	return err
}

// systemdUnits is the connection to the real systemd.
type systemdUnits struct{ connection *systemd.Conn }

// dialSystemd connects to systemd; nil if systemd is not init: sd_booted(3).
func (d *Mutator) dialSystemd(ctx context.Context) (units, error) {
	if _, err := d.host.Files.List("/run/systemd/system"); err != nil {
		return nil, nil //nolint:nilerr // nothing to ask is an answer
	}
	connection, err := hostsystemd.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return systemdUnits{connection}, nil
}

func (s systemdUnits) Close() { s.connection.Close() }

// ControlGroup reads the unit's property of that name.
// https://www.freedesktop.org/software/systemd/man/latest/org.freedesktop.systemd1.html
func (s systemdUnits) ControlGroup(ctx context.Context, unit string) (string, error) {
	kind := "Slice"
	if strings.HasSuffix(unit, ".scope") {
		kind = "Scope"
	}
	property, err := s.connection.GetUnitTypePropertyContext(ctx, unit, kind, "ControlGroup")
	if err != nil {
		return "", ignoreMissing(err)
	}
	group, ok := property.Value.Value().(string)
	if !ok {
		return "", fmt.Errorf("ControlGroup is %s, not a string", property.Value.Signature())
	}
	return group, nil
}

func (s systemdUnits) Stop(ctx context.Context, unit string) (string, error) {
	done := make(chan string, 1) // one result
	if _, err := s.connection.StopUnitContext(ctx, unit, "replace", done); err != nil {
		if err = ignoreMissing(err); err != nil {
			return "", err
		}
		return "done", nil
	}
	select {
	case result := <-done:
		return result, ignoreMissing(s.connection.ResetFailedUnitContext(ctx, unit))
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func ignoreMissing(err error) error {
	var answer dbus.Error
	missing := []string{"org.freedesktop.systemd1.NoSuchUnit", "org.freedesktop.DBus.Error.UnknownObject"}
	if errors.As(err, &answer) && slices.Contains(missing, answer.Name) {
		return nil
	}
	return err
}
