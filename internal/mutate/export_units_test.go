package mutate

import (
	"context"

	"github.com/nodeagent/nodeagent/internal/host/mount"
)

// Units is what of systemd a unit is stopped with.
type Units = units

// WithUnits puts something in the place of systemd.
func WithUnits(d *Mutator, u Units) {
	d.systemd = func(context.Context) (units, error) { return u, nil }
}

// OfSystemd is for the table of hierarchies.
func OfSystemd(m mount.Mount, mounts []mount.Mount) bool { return ofSystemd(m, mounts) }
