package hand

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// unitLimit bounds the stop of an empty unit. kubelet gives it 30 seconds too.
const unitLimit = 30 * time.Second

// stopUnit has systemd stop the slice or scope that a cgroup stands for. Without systemd as init, or where systemd has no
// such unit, there is nothing to do. The cgroup must be empty: systemd would kill what is in it.
func (d *Hand) stopUnit(ctx context.Context, c Cgroup, point, name string) error {
	unit := path.Base(name)
	if !strings.HasSuffix(unit, ".slice") && !strings.HasSuffix(unit, ".scope") {
		return nil
	}
	if _, err := d.host.Files.List("/run/systemd/system"); err != nil {
		return nil // sd_booted(3): systemd is not init
	}
	if err := emptyCgroup(point, name, c.File); err != nil {
		if errors.Is(err, errGone) {
			return nil
		}
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, unitLimit)
	defer cancel()
	connection, err := systemd.NewSystemdConnectionContext(ctx)
	if err != nil {
		return fmt.Errorf("systemd: %w", err)
	}
	defer connection.Close()
	done := make(chan string, 1)
	if _, err := connection.StopUnitContext(ctx, unit, "replace", done); err != nil {
		return ignoreMissing(unit, err)
	}
	select {
	case result := <-done:
		if result != "done" && result != "skipped" {
			d.log.Warn("systemd did not stop a unit", "unit", unit, "result", result)
		}
	case <-ctx.Done():
		return fmt.Errorf("stop unit %s: %w", unit, ctx.Err())
	}
	return ignoreMissing(unit, connection.ResetFailedUnitContext(ctx, unit))
}

func ignoreMissing(unit string, err error) error {
	var answer dbus.Error
	if err == nil || errors.As(err, &answer) && answer.Name == "org.freedesktop.systemd1.NoSuchUnit" {
		return nil
	}
	return fmt.Errorf("unit %s: %w", unit, err)
}

// emptyCgroup makes sure that a cgroup is the judged one and that no process is in it or below it.
func emptyCgroup(point, name string, id FileID) error {
	fd, err := openCgroup(point, name, id)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err = unpopulatedTree(fd); errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%w: %w", err, ErrBusy)
	}
	return err
}
