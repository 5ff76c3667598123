package mutate

import (
	"context"

	"github.com/nodeagent/nodeagent/internal/host/mount"
)

// Units are the systemd methods needed to stop a unit.
type Units = units

// WithUnits replaces systemd with a fake.
func WithUnits(d *Mutator, u Units) {
	d.systemd = func(context.Context) (units, error) { return u, nil }
}

// OfSystemd exports ofSystemd for the table of hierarchies.
func OfSystemd(m mount.Mount, mounts []mount.Mount) bool { return ofSystemd(m, mounts) }
