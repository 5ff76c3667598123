package mutate

import (
	"context"
	"fmt"
	"path"

	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/mutate/child"
)

// Kept is one entry of the quarantine.
type Kept = child.Kept

// QuarantineFull returns why need more bytes do not fit into the quarantine: see child.QuarantineFull.
func QuarantineFull(all []Kept, need, limit uint64) string {
	return child.QuarantineFull(all, need, limit)
}

// AddBytes adds without an overflow: sparse files may have any size.
func AddBytes(a, b uint64) uint64 { return child.AddBytes(a, b) }

// QuarantineDir is the directory of the quarantine, next to the pods directory on the same filesystem.
func (d *Mutator) QuarantineDir() string {
	return path.Join("/", d.host.Paths.KubeletRoot, "nodeagent-quarantine")
}

// Quarantine moves a regular file or a directory out of the directory of the pod uid instead of deleting it. It
// replaces and copies no data: the quarantine must be on the same filesystem. It returns a Refusal if the quarantine
// would hold more than limit bytes.
func (d *Mutator) Quarantine(ctx context.Context, uid, name string, id FileID, limit uint64) error {
	if name == "" {
		return refuse("no name")
	}
	now := d.host.Clock()
	_, err := d.do(ctx, child.Request{
		Op: child.OpQuarantine, Base: d.podsDir(), UID: uid, Path: name, File: id, Quarantine: d.QuarantineDir(),
		Limit: limit,
		Kept:  Kept{Moved: now, Aged: now},
	})
	return err
}

// Quarantined lists the entries of the quarantine.
func (d *Mutator) Quarantined(ctx context.Context) ([]Kept, error) {
	a, err := d.do(ctx, child.Request{Op: child.OpKept, Quarantine: d.QuarantineDir()})
	return a.Kept, err
}

// NoteQuarantine writes the age of an entry, and whether its removal was reported, into its record.
func (d *Mutator) NoteQuarantine(ctx context.Context, kept Kept) error {
	_, err := d.do(ctx, child.Request{Op: child.OpAged, Quarantine: d.QuarantineDir(), Kept: kept})
	return err
}

// EmptyQuarantine removes one entry that the agent itself moved there. It removes no part of it if the entry contains a
// mount, or if a part of it is mounted elsewhere in any mount namespace.
func (d *Mutator) EmptyQuarantine(ctx context.Context, kept Kept) error {
	if kept.Foreign != "" {
		return refuse("%s is not the agent's: %s", kept.Name, kept.Foreign)
	}
	holder, err := mount.MountedFrom(ctx, d.host, path.Join(d.QuarantineDir(), kept.Name))
	if err != nil {
		return fmt.Errorf("whether a part of %s is mounted elsewhere: %w", kept.Name, err)
	}
	if holder != (mount.MountedAt{}) {
		return refuse("a part of %s is mounted on %s in the mount namespace of process %d", kept.Name, holder.Point,
			holder.PID)
	}
	_, err = d.do(ctx, child.Request{Op: child.OpEmpty, Quarantine: d.QuarantineDir(), Kept: kept})
	return err
}
